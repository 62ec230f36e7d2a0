// Judges requests by a ValidatingAdmissionPolicy, with the API server's own CEL.
//
// A line of standard input is {"policy", "request"}: the policy object and an AdmissionRequest with
// object and oldObject; its answer is a line with the denials' messages, or an error. Expressions
// are compiled as a server of Kubernetes 1.30, the first that has these policies by default, would
// compile new ones. Which requests a resource rule is about is decided here; what a denial is, and
// what becomes of an expression that fails, as the server's validator has it (failurePolicy Fail).
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	celgo "github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admission/v1"
	policyv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
)

type question struct {
	Policy  policyv1.ValidatingAdmissionPolicy `json:"policy"`
	Request admissionv1.AdmissionRequest       `json:"request"`
}

type answer struct {
	Denied []string `json:"denied"`
	Error  string   `json:"error,omitempty"`
}

type expression struct {
	name, text string
	results    []*celgo.Type
}

func (one expression) GetName() string            { return one.name }
func (one expression) GetExpression() string      { return one.text }
func (one expression) ReturnTypes() []*celgo.Type { return one.results }

var anything = []*celgo.Type{celgo.AnyType, celgo.DynType}

var base = environment.MustBaseEnvSet(version.MajorMinor(1, 30))

func concerns(policy policyv1.ValidatingAdmissionPolicy, request admissionv1.AdmissionRequest) bool {
	resource := request.Resource.Resource
	if request.SubResource != "" {
		resource += "/" + request.SubResource
	}
	for _, one := range policy.Spec.MatchConstraints.ResourceRules {
		if slices.Contains(one.Operations, policyv1.OperationType(request.Operation)) &&
			slices.Contains(one.APIGroups, request.Resource.Group) &&
			slices.Contains(one.APIVersions, request.Resource.Version) &&
			slices.Contains(one.Resources, resource) {
			return true
		}
	}
	return false
}

func object(raw runtime.RawExtension) (runtime.Object, error) {
	if len(raw.Raw) == 0 || string(raw.Raw) == "null" {
		return nil, nil
	}
	found := &unstructured.Unstructured{}
	return found, found.UnmarshalJSON(raw.Raw)
}

func attributes(request admissionv1.AdmissionRequest) (*admission.VersionedAttributes, error) {
	now, err := object(request.Object)
	if err != nil {
		return nil, err
	}
	before, err := object(request.OldObject)
	if err != nil {
		return nil, err
	}
	kind := schema.GroupVersionKind(request.Kind)
	resource := schema.GroupVersionResource(request.Resource)
	who := &user.DefaultInfo{Name: request.UserInfo.Username, Groups: request.UserInfo.Groups}
	record := admission.NewAttributesRecord(
		now, before, kind, request.Namespace, request.Name, resource, request.SubResource,
		admission.Operation(request.Operation), nil, false, who)
	return admission.NewVersionedAttributes(
		record, kind, admission.NewObjectInterfacesFromScheme(runtime.NewScheme()))
}

func judge(line []byte) (answer, error) {
	said := answer{Denied: []string{}}
	var asked question
	strict := json.NewDecoder(bytes.NewReader(line))
	strict.DisallowUnknownFields() // a server drops them, and with them what they were to forbid
	if err := strict.Decode(&asked); err != nil {
		return said, err
	}
	policy, request := asked.Policy, asked.Request
	if !concerns(policy, request) {
		return said, nil
	}
	compiler, err := cel.NewCompositedCompiler(base)
	if err != nil {
		return said, err
	}
	declared := cel.OptionalVariableDeclarations{}
	for _, one := range policy.Spec.Variables {
		named := expression{one.Name, one.Expression, anything}
		if failed := compiler.CompileAndStoreVariable(named, declared, environment.NewExpressions); failed.Error != nil {
			return said, fmt.Errorf("variable %s: %w", one.Name, failed.Error)
		}
	}
	var checks, texts []cel.ExpressionAccessor
	for _, one := range policy.Spec.Validations {
		checks = append(checks, expression{"", one.Expression, []*celgo.Type{celgo.BoolType}})
		texts = append(texts, expression{"", one.MessageExpression, []*celgo.Type{celgo.StringType}})
	}
	attrs, err := attributes(request)
	if err != nil {
		return said, err
	}
	results, err := evaluate(compiler, checks, attrs)
	if err != nil {
		return said, err
	}
	messages, err := evaluate(compiler, texts, attrs)
	if err != nil {
		return said, err
	}
	for i, result := range results {
		switch {
		case result.Error != nil:
			said.Denied = append(said.Denied, result.Error.Error())
		case result.EvalResult.Value() == true:
		case messages[i].Error != nil:
			return said, messages[i].Error
		default:
			said.Denied = append(said.Denied, fmt.Sprint(messages[i].EvalResult.Value()))
		}
	}
	return said, nil
}

func evaluate(
	compiler *cel.CompositedCompiler, asked []cel.ExpressionAccessor, attrs *admission.VersionedAttributes,
) ([]cel.EvaluationResult, error) {
	condition := compiler.CompileCondition(asked, cel.OptionalVariableDeclarations{}, environment.NewExpressions)
	if failed := condition.CompilationErrors(); len(failed) > 0 {
		return nil, failed[0]
	}
	request := cel.CreateAdmissionRequest(
		attrs.Attributes,
		metav1.GroupVersionResource(attrs.GetResource()), metav1.GroupVersionKind(attrs.GetKind()))
	found, _, err := condition.ForInput(
		context.Background(), attrs, request, cel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
	return found, err
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
