"""The live-migration protocol in memory: deterministic, without a clock, a kernel or a socket.

Agents, store, watches, BGP, KubeVirt and a guest are values; everything that an agent decides is
decided by the product's own pure functions (`lab.simulate.product`). `search` looks at every
interleaving up to a bound, or at random ones by seed; `verdicts` says what must never be seen.
"""
