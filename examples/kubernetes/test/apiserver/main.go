// Apiserver is kube-apiserver, or etcd if its arguments are "etcd DIR CLIENT-URL PEER-URL". They
// are two processes, so that tests can stop one and keep the other.
package main

import (
	"fmt"
	"net/url"
	"os"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if len(os.Args) == 5 && os.Args[1] == "etcd" {
		if err := etcd(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}

// etcd serves until it fails or the process ends.
func etcd(dir, client, peer string) error {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.LogLevel = "error"
	cfg.UnsafeNoFsync = true
	for to, text := range map[*[]url.URL]string{&cfg.ListenClientUrls: client, &cfg.AdvertiseClientUrls: client,
		&cfg.ListenPeerUrls: peer, &cfg.AdvertisePeerUrls: peer} {
		u, err := url.Parse(text)
		if err != nil {
			return err
		}
		*to = []url.URL{*u}
	}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	return <-server.Err()
}
