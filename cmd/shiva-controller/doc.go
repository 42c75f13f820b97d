// Shiva-controller makes a Deployment for each Model, a custom resource of Kubernetes, and scales
// it to the number of replicas that the servers report as needed.
//
// A Model has the pod template of a model's processes. The controller applies a Deployment with
// this template, which the Model owns, so that the cluster deletes both together. The controller
// reverts changes of other writers to its fields; fields that they add, such as an annotation of a
// rollout, stay. Every few seconds it asks the admin APIs of all servers for the load of the model
// in replicas, and sums it: see servers.go and scale.go.
//
// A Model's author gets pods with any template that the cluster admits, as the author of a
// Deployment does, but not the controller's token: it goes only to the addresses on the command
// line, with TLS, and redirects are not followed.
//
// The controller stores nothing. After a restart, or as a second instance, it finds everything in
// the apiserver. Among several instances the holder of the Lease acts; with --lease="" all act, and
// do the same. While the apiserver is unreachable nothing changes, and models keep running.
package main
