// Shiva-controller makes a Deployment for each Model, a custom resource of Kubernetes, and scales
// it by what the servers say that the model needs.
//
// A Model has the pod template of a model's processes. The controller applies a Deployment with
// it, which the Model owns, so that the cluster deletes both together. What others change of that,
// it changes back; what they add, such as an annotation of a rollout, stays. Every few seconds it
// asks the admin doors of all servers for the load of the model in replicas, and sums it: see
// servers.go and scale.go.
//
// It stores nothing. One that is started again, or a second one, finds everything in the apiserver.
// Of several one acts, which has the Lease; two that both act do the same (--lease=""). While the
// apiserver is away nothing changes, and models go on.
package main
