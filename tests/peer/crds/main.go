// Kubernetes' own judgement of CustomResourceDefinitions, and of objects by them.
//
// The files of definitions are arguments; what is wrong with one ends the program. Then each line
// of standard input is an object, and is answered by a line: the fields that are dropped, what is
// refused, and the object as it would be stored.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	objects "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	whole "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

type kind struct {
	structural *schema.Structural
	validator  objects.SchemaValidator
}

type answer struct {
	Dropped []string       `json:"dropped"`
	Refused []string       `json:"refused"`
	Stored  map[string]any `json:"stored"`
}

func main() {
	kinds := map[string]kind{}
	for _, path := range os.Args[1:] {
		if err := define(path, kinds); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			os.Exit(1)
		}
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var object map[string]any
		if err := whole.Unmarshal(lines.Bytes(), &object); err != nil {
			panic(err)
		}
		if err := out.Encode(judge(kinds, object)); err != nil {
			panic(err)
		}
	}
}

func define(path string, kinds map[string]kind) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	given := &v1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(raw, given); err != nil {
		return err
	}
	v1.SetDefaults_CustomResourceDefinition(given)
	v1.SetDefaults_CustomResourceDefinitionSpec(&given.Spec)
	crd := &apiextensions.CustomResourceDefinition{}
	if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(given, crd, nil); err != nil {
		return err
	}
	version := given.Spec.Versions[0].Name
	crd.Status.StoredVersions = []string{version}
	if wrong := validation.ValidateCustomResourceDefinition(context.Background(), crd); len(wrong) > 0 {
		return wrong.ToAggregate()
	}
	served, err := apiextensions.GetSchemaForVersion(crd, version)
	if err != nil {
		return err
	}
	structural, err := schema.NewStructural(served.OpenAPIV3Schema)
	if err != nil {
		return err
	}
	validator, _, err := objects.NewSchemaValidator(served.OpenAPIV3Schema)
	if err != nil {
		return err
	}
	kinds[given.Spec.Group+"/"+version+" "+given.Spec.Names.Kind] = kind{structural, validator}
	return nil
}

func judge(kinds map[string]kind, object map[string]any) answer {
	found, known := kinds[fmt.Sprintf("%v %v", object["apiVersion"], object["kind"])]
	if !known {
		panic(fmt.Sprintf("no definition of %v %v", object["apiVersion"], object["kind"]))
	}
	track := schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	said := answer{Dropped: pruning.PruneWithOptions(object, found.structural, true, track)}
	defaulting.PruneNonNullableNullsWithoutDefaults(object, found.structural)
	defaulting.Default(object, found.structural)
	for _, one := range objects.ValidateCustomResource(nil, object, found.validator) {
		said.Refused = append(said.Refused, one.Error())
	}
	said.Stored = object
	return said
}
