// Package kubernetes tests the chart, the manifests, the runtime of KServe and the controller
// against a real kube-apiserver with a real etcd. "make k8s" builds the programs that it starts and
// runs it.
package kubernetes
