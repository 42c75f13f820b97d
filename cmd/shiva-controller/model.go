package main

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// groupVersion is the API version of Model. The schema is in examples/kubernetes/chart/crds.
var groupVersion = schema.GroupVersion{Group: "shivad.github.io", Version: "v1alpha1"}

// A Model is a model whose processes run as a Deployment of the same name.
type Model struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ModelSpec   `json:"spec"`
	Status ModelStatus `json:"status,omitempty"`
}

// A ModelSpec is the desired state.
type ModelSpec struct {
	Model   string `json:"model,omitempty"`   // its name on the servers; "" = the object's name
	Version string `json:"version,omitempty"` // "" = all versions count

	// Admin is host:port of the servers' admin APIs, one of the controller's --admin and
	// --allow-admin; "" = that of --admin.
	Admin    string `json:"admin,omitempty"`
	Replicas *Range `json:"replicas,omitempty"`

	// ScaleDownAfter is the time for which fewer replicas must have sufficed before a scale-down; 0
	// = 5m.
	ScaleDownAfter metav1.Duration `json:"scaleDownAfter,omitempty"`

	// Template is a PodTemplateSpec, which the apiserver checks when the Deployment is made.
	Template runtime.RawExtension `json:"template"`
}

// A Range bounds the number of replicas. Without one the controller does not scale.
type Range struct {
	Min int32 `json:"min"`
	Max int32 `json:"max"`
}

// A ModelStatus is the observed state.
type ModelStatus struct {
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Needed is the latest number of replicas that the servers asked for; nil: none yet.
	Needed *int32 `json:"needed,omitempty"`
	// Replicas is the number that the Deployment was given.
	Replicas   int32              `json:"replicas,omitempty"`
	Ready      int32              `json:"ready,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// A ModelList is the apiserver's list of Models.
type ModelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Model `json:"items"`
}

func (m *Model) name() string {
	if m.Spec.Model != "" {
		return m.Spec.Model
	}
	return m.Name
}

func (m *Model) scaleDownAfter() time.Duration {
	if d := m.Spec.ScaleDownAfter.Duration; d > 0 {
		return d
	}
	return 5 * time.Minute
}

// DeepCopyObject is for the client's cache.
func (m *Model) DeepCopyObject() runtime.Object {
	c := *m
	m.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	if m.Spec.Replicas != nil {
		r := *m.Spec.Replicas
		c.Spec.Replicas = &r
	}
	m.Spec.Template.DeepCopyInto(&c.Spec.Template)
	if m.Status.Needed != nil {
		n := *m.Status.Needed
		c.Status.Needed = &n
	}
	if m.Status.Conditions != nil {
		c.Status.Conditions = make([]metav1.Condition, len(m.Status.Conditions))
		for i := range m.Status.Conditions {
			m.Status.Conditions[i].DeepCopyInto(&c.Status.Conditions[i])
		}
	}
	return &c
}

// DeepCopyObject is for the client's cache.
func (l *ModelList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	if l.Items != nil {
		c.Items = make([]Model, len(l.Items))
		for i := range l.Items {
			c.Items[i] = *l.Items[i].DeepCopyObject().(*Model)
		}
	}
	return &c
}

func addToScheme(s *runtime.Scheme) {
	s.AddKnownTypes(groupVersion, &Model{}, &ModelList{})
	metav1.AddToGroupVersion(s, groupVersion)
}
