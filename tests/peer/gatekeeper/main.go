// Judges admission reviews by a Gatekeeper template's Rego, with the engine that Gatekeeper has.
//
// A line of standard input is {"rego", "package", "parameters", "review"}, all of them JSON; its
// answer is a line with the violations' messages, or an error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
)

type question struct {
	Rego       string `json:"rego"`
	Package    string `json:"package"`
	Parameters any    `json:"parameters"`
	Review     any    `json:"review"`
}

type answer struct {
	Denied []string `json:"denied"`
	Error  string   `json:"error,omitempty"`
}

func judge(line []byte) (answer, error) {
	said := answer{Denied: []string{}}
	var asked question
	if err := json.Unmarshal(line, &asked); err != nil {
		return said, err
	}
	results, err := rego.New(
		rego.SetRegoVersion(ast.RegoV0),
		rego.StrictBuiltinErrors(true),
		rego.Module("template.rego", asked.Rego),
		rego.Query("data."+asked.Package+".violation[found]"),
		rego.Input(map[string]any{"parameters": asked.Parameters, "review": asked.Review}),
	).Eval(context.Background())
	if err != nil {
		return said, err
	}
	for _, result := range results {
		found, ok := result.Bindings["found"].(map[string]any)
		if !ok {
			return said, fmt.Errorf("a violation is no object: %v", result.Bindings["found"])
		}
		said.Denied = append(said.Denied, fmt.Sprint(found["msg"]))
	}
	return said, nil
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		said, err := judge(lines.Bytes())
		if err != nil {
			said.Error = err.Error()
		}
		if err := out.Encode(said); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
