#!/usr/bin/env bash
# manifest.sh HELM: print the plain manifest. The version of Kubernetes is named because Helm's own
# default differs between its builds.
set -euo pipefail
cat <<'TEXT'
# Tortie for a Kubernetes cluster: what Helm renders from conf/chart/tortie with its default values.
# Written by `make manifests`: change the chart instead, or use it. See docs/install.md: the CRDs
# (conf/crds/v1) come first, and `image: tortie:…` is where you have pushed the image.
TEXT
"$1" template tortie "$(dirname "$0")/../conf/chart/tortie" --namespace kube-system --kube-version v1.31.0
