// Command ipampeer is one Calico node's IPAM client: requests in, answers out, a JSON line each.
//
// The environment names the datastore (DATASTORE_TYPE, ETCD_ENDPOINTS, K8S_API_ENDPOINT). A request
// that fails is answered with its error; only unreadable input ends the program early.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/calico/libcalico-go/lib/ipam"
	"github.com/projectcalico/calico/libcalico-go/lib/net"

	"tortie.test/peer/calico"
)

const patience = time.Minute

type request struct {
	Op      string            `json:"op"`
	Handle  string            `json:"handle"`
	Address string            `json:"address"`
	IPv4    int               `json:"ipv4"`
	IPv6    int               `json:"ipv6"`
	Attrs   map[string]string `json:"attrs"`
}

type answer struct {
	Addresses []string          `json:"addresses"`
	Attrs     map[string]string `json:"attrs,omitempty"`
	Handle    string            `json:"handle,omitempty"`
	Error     string            `json:"error,omitempty"`
}

func main() {
	node := flag.String("node", "", "the Calico node to allocate for")
	flag.Parse()
	client, err := calico.IPAM()
	if err != nil {
		log.Fatal(err)
	}
	out := json.NewEncoder(os.Stdout)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var asked request
		if err := json.Unmarshal(in.Bytes(), &asked); err != nil {
			log.Fatal(err)
		}
		got, err := serve(client, *node, asked)
		if err != nil {
			got.Error = err.Error()
		}
		if err := out.Encode(got); err != nil {
			log.Fatal(err)
		}
	}
	if err := in.Err(); err != nil {
		log.Fatal(err)
	}
}

func serve(client ipam.Interface, node string, asked request) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch asked.Op {
	case "assign":
		return assign(ctx, client, node, asked)
	case "claim":
		return claim(ctx, client, node, asked)
	case "release":
		return answer{}, client.ReleaseByHandle(ctx, asked.Handle)
	case "addresses":
		held, err := client.IPsByHandle(ctx, asked.Handle)
		return answer{Addresses: texts(held)}, err
	case "attributes":
		return attributes(ctx, client, asked)
	case "release-affinities":
		return answer{}, client.ReleaseHostAffinities(ctx, node, false)
	}
	return answer{}, fmt.Errorf("unknown op %q", asked.Op)
}

func assign(ctx context.Context, client ipam.Interface, node string, asked request) (answer, error) {
	v4, v6, err := client.AutoAssign(ctx, ipam.AutoAssignArgs{
		Num4:        asked.IPv4,
		Num6:        asked.IPv6,
		HandleID:    &asked.Handle,
		Attrs:       asked.Attrs,
		Hostname:    node,
		IntendedUse: v3.IPPoolAllowedUseWorkload,
	})
	var got answer
	for _, assigned := range []*ipam.IPAMAssignments{v4, v6} {
		if assigned == nil {
			continue
		}
		for _, one := range assigned.IPs {
			got.Addresses = append(got.Addresses, one.IP.String())
		}
		if err == nil {
			err = assigned.PartialFulfillmentError()
		}
	}
	return got, err
}

func claim(ctx context.Context, client ipam.Interface, node string, asked request) (answer, error) {
	address := net.ParseIP(asked.Address)
	if address == nil {
		return answer{}, fmt.Errorf("%q is no address", asked.Address)
	}
	err := client.AssignIP(ctx, ipam.AssignIPArgs{
		IP: *address, HandleID: &asked.Handle, Attrs: asked.Attrs, Hostname: node,
	})
	return answer{Addresses: []string{asked.Address}}, err
}

func attributes(ctx context.Context, client ipam.Interface, asked request) (answer, error) {
	address := net.ParseIP(asked.Address)
	if address == nil {
		return answer{}, fmt.Errorf("%q is no address", asked.Address)
	}
	attrs, handle, err := client.GetAssignmentAttributes(ctx, *address)
	got := answer{Attrs: attrs}
	if handle != nil {
		got.Handle = *handle
	}
	return got, err
}

func texts(addresses []net.IP) []string {
	found := make([]string, 0, len(addresses))
	for _, one := range addresses {
		found = append(found, one.String())
	}
	return found
}
