//go:build tools

// Package tools names the program that is built here, so that go.mod and go.sum hold its version.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
