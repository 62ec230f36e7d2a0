// Command kubevirtproxy is the migration proxy of KubeVirt's virt-handler, with the TLS settings that
// virt-handler gives it: requests in, answers out, a JSON line each.
//
// A request that fails is answered with its error; only unreadable input ends the program early. What
// KubeVirt's own code logs goes to standard error.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"runtime"
	"time"

	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	v1 "kubevirt.io/api/core/v1"

	"kubevirt.io/kubevirt/pkg/certificates/bootstrap"
	disk "kubevirt.io/kubevirt/pkg/ephemeral-disk-utils"
	kvtls "kubevirt.io/kubevirt/pkg/util/tls"
	virtconfig "kubevirt.io/kubevirt/pkg/virt-config"
	proxy "kubevirt.io/kubevirt/pkg/virt-handler/migration-proxy"
)

const namespace = "kubevirt"

type request struct {
	Op      string         `json:"op"`
	Key     string         `json:"key"`
	Files   []string       `json:"files"`
	Address string         `json:"address"`
	Ports   map[string]int `json:"ports"`
	Base    string         `json:"base"`
}

type answer struct {
	Ports map[string]int `json:"ports,omitempty"`
	Files []string       `json:"files,omitempty"`
	Error string         `json:"error,omitempty"`
}

// bundle is a CA as virt-handler takes it from its ConfigMap; here it is a file.
type bundle string

func (file bundle) GetCurrentRaw() ([]byte, error) { return os.ReadFile(string(file)) }

func (file bundle) GetCurrent() (*x509.CertPool, error) {
	raw, err := file.GetCurrentRaw()
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("%s: no certificates", file)
	}
	return pool, nil
}

func main() {
	ca := flag.String("ca", "", "CA bundle")
	server := flag.String("server", "", "server certificate; its key ends in .key instead of .crt")
	client := flag.String("client", "", "client certificate")
	migration := flag.String("migration", "", "migration's client certificate")
	disableTLS := flag.Bool("disable-tls", false, "migrations.disableTLS")
	flag.Parse()
	disk.MockDefaultOwnershipManager() // there need be no user `qemu` here
	config, err := cluster(*disableTLS)
	if err != nil {
		log.Fatal(err)
	}
	manager := proxy.NewMigrationProxyManager(
		kvtls.SetupTLSForVirtHandlerServer(bundle(*ca), pair(*server), false, config, []string{"virt-handler", "migration"}),
		clientTLS(*ca, *client),
		clientTLS(*ca, *migration),
		config,
	)
	out := json.NewEncoder(os.Stdout)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var asked request
		if err := json.Unmarshal(in.Bytes(), &asked); err != nil {
			log.Fatal(err)
		}
		got, err := serve(manager, asked)
		if err != nil {
			got.Error = err.Error()
		}
		if err := out.Encode(got); err != nil {
			log.Fatal(err)
		}
	}
}

func serve(manager proxy.ProxyManager, asked request) (answer, error) {
	switch asked.Op {
	case "start-target":
		err := manager.StartTargetListener(asked.Key, asked.Files)
		return answer{Ports: manager.GetTargetListenerPorts(asked.Key)}, err
	case "start-source":
		err := manager.StartSourceListener(asked.Key, asked.Address, asked.Ports, asked.Base)
		return answer{Files: manager.GetSourceListenerFiles(asked.Key)}, err
	case "stop-target":
		manager.StopTargetListener(asked.Key)
	case "stop-source":
		manager.StopSourceListener(asked.Key)
	case "shutdown":
		manager.InitiateGracefulShutdown()
	default:
		return answer{}, fmt.Errorf("unknown op %q", asked.Op)
	}
	return answer{}, nil
}

func clientTLS(ca, cert string) *tls.Config {
	return kvtls.SetupTLSForVirtHandlerClients(bundle(ca), pair(cert), false)
}

// pair is a certificate's manager, as virt-handler has one for each directory of a Secret.
func pair(cert string) *bootstrap.FileCertificateManager {
	key := cert[:len(cert)-len(".crt")] + ".key"
	manager := bootstrap.NewFileCertificateManager(cert, key)
	go manager.Start()
	for manager.Current() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	return manager
}

// cluster is a cluster's configuration in which only migrations.disableTLS is set.
func cluster(disableTLS bool) (*virtconfig.ClusterConfig, error) {
	watch := func(object apiruntime.Object) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(&cache.ListWatch{}, object, 0, cache.Indexers{})
	}
	kubevirts := watch(&v1.KubeVirt{})
	meta := metav1.ObjectMeta{Name: "kubevirt", Namespace: namespace, ResourceVersion: "1"}
	settings := v1.KubeVirtConfiguration{
		MigrationConfiguration: &v1.MigrationConfiguration{DisableTLS: &disableTLS},
	}
	if err := kubevirts.GetStore().Add(&v1.KubeVirt{
		ObjectMeta: meta,
		Spec:       v1.KubeVirtSpec{Configuration: settings},
		Status:     v1.KubeVirtStatus{Phase: "Deployed", DefaultArchitecture: runtime.GOARCH},
	}); err != nil {
		return nil, err
	}
	return virtconfig.NewClusterConfig(watch(&extv1.CustomResourceDefinition{}), kubevirts, namespace)
}
