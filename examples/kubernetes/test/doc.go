// Package kubernetes tests the chart, the manifests, the KServe runtime and the controller against
// a real kube-apiserver with a real etcd. "make k8s" builds the programs that the tests start, and
// runs the tests.
package kubernetes
