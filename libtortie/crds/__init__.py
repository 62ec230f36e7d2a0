"""The CustomResourceDefinitions under `conf/crds/`, made of the model.

What a field may be says the model alone; here is only what Kubernetes wants to know besides.
`python -m libtortie.crds` writes the files, and a test holds that they are what it writes.
"""
