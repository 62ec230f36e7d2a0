// Package calico connects the peer's programs to Calico's own IPAM client on an etcd.
package calico

import (
	"io"

	"github.com/projectcalico/calico/libcalico-go/lib/apiconfig"
	"github.com/projectcalico/calico/libcalico-go/lib/clientv3"
	"github.com/projectcalico/calico/libcalico-go/lib/ipam"
	"github.com/sirupsen/logrus"
)

// IPAM opens Calico's IPAM client on an etcd; endpoints are URLs, separated by commas.
func IPAM(endpoints string) (ipam.Interface, error) {
	logrus.SetOutput(io.Discard) // it reports each lost race, which is no fault here
	config := apiconfig.NewCalicoAPIConfig()
	config.Spec.DatastoreType = apiconfig.EtcdV3
	config.Spec.EtcdEndpoints = endpoints
	client, err := clientv3.New(*config)
	if err != nil {
		return nil, err
	}
	return client.IPAM(), nil
}
