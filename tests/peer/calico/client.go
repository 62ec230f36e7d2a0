// Package calico connects the peer's programs to Calico's own IPAM client.
package calico

import (
	"io"

	"github.com/projectcalico/calico/libcalico-go/lib/clientv3"
	"github.com/projectcalico/calico/libcalico-go/lib/ipam"
	"github.com/sirupsen/logrus"
)

// IPAM opens Calico's IPAM client on the datastore that the environment names, as for calicoctl.
func IPAM() (ipam.Interface, error) {
	logrus.SetOutput(io.Discard) // it reports each lost race, which is no fault here
	client, err := clientv3.NewFromEnv()
	if err != nil {
		return nil, err
	}
	return client.IPAM(), nil
}
