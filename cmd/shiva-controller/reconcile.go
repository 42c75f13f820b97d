package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	manager  = "shiva-controller"              // owns the fields that it applies
	selected = "shivad.github.io/model-object" // a label of pods: the name of the Model
)

// A reconciler brings Deployments to the state that their Models describe.
type reconciler struct {
	client.Client
	live    client.Reader // asks the apiserver; the Client reads from a cache
	servers *servers
	poll    time.Duration

	mu     sync.Mutex
	scales map[types.NamespacedName]*scale
}

// Reconcile is called when a Model or its Deployment has changed, and every poll.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	m := &Model{}
	if err := r.Get(ctx, request.NamespacedName, m); err != nil {
		if apierrors.IsNotFound(err) { // the cluster deletes the Deployment
			r.forget(request.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	}
	if m.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	status := m.DeepCopyObject().(*Model).Status
	status.ObservedGeneration = m.Generation
	say := func(kind string, yes bool, reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message,
			ObservedGeneration: m.Generation}
		if yes {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}
	err := r.apply(ctx, m, &status, say)
	if !reflect.DeepEqual(status, m.Status) {
		m.Status = status
		if err := client.IgnoreNotFound(r.Status().Update(ctx, m)); err != nil && !apierrors.IsConflict(err) {
			return ctrl.Result{}, err
		}
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: r.poll}, nil
}

// apply applies the Deployment with the number of replicas needed. It returns errors that may be
// temporary; errors that only a change of the Model can fix go to the Model's conditions.
func (r *reconciler) apply(ctx context.Context, m *Model, status *ModelStatus,
	say func(kind string, yes bool, reason, message string)) error {
	is := &appsv1.Deployment{}
	err := r.Get(ctx, client.ObjectKeyFromObject(m), is)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	exists := err == nil
	if exists && !metav1.IsControlledBy(is, m) {
		say("Ready", false, "NotOurs", fmt.Sprintf("the Deployment %s exists and does not belong to this Model: delete it, or rename the Model", m.Name))
		return nil
	}
	if !exists {
		// The cluster deletes a Deployment with its Model, and the cache may show that before the
		// Model's end.
		if exists, err := r.stillExists(ctx, m); !exists {
			return err
		}
	}
	replicas := r.replicas(ctx, m, is, exists, status, say)
	wanted, err := deployment(m, replicas)
	if err != nil {
		say("Ready", false, "InvalidTemplate", err.Error())
		return nil
	}
	made := &unstructured.Unstructured{Object: wanted}
	made.SetUID(is.UID) // change only this Deployment: if it was deleted, none is made
	// The apiserver refuses fields that a Deployment does not have, as kubectl does.
	err = r.Apply(ctx, client.ApplyConfigurationFromUnstructured(made), client.FieldOwner(manager),
		client.ForceOwnership)
	if isStale(err) {
		return nil // a later event or the next poll brings the change
	}
	if isPermanent(err) {
		say("Ready", false, "Refused", err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	if replicas != nil {
		status.Replicas = *replicas
	} else if is.Spec.Replicas != nil {
		status.Replicas = *is.Spec.Replicas
	}
	status.Ready = is.Status.ReadyReplicas
	if status.Ready < status.Replicas {
		say("Ready", false, "Starting", fmt.Sprintf("%d of %d replicas are ready", status.Ready, status.Replicas))
	} else {
		say("Ready", true, "Serving", fmt.Sprintf("%d replicas are ready", status.Ready))
	}
	return nil
}

// stillExists reports whether the apiserver still has this Model, and is not deleting it.
func (r *reconciler) stillExists(ctx context.Context, m *Model) (bool, error) {
	now := &Model{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(m), now); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return now.UID == m.UID && now.DeletionTimestamp == nil, nil
}

// isStale reports whether the apiserver refused because it has no Deployment any more, or a
// different one than the cache.
func isStale(err error) bool {
	var refusal apierrors.APIStatus
	if !errors.As(err, &refusal) {
		return false
	}
	details := refusal.Status().Details
	return apierrors.IsConflict(err) || details != nil &&
		slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// isPermanent reports whether the apiserver will refuse the same request again. The apiserver
// reports a field that a kind does not have as an internal error, which only the text reveals.
func isPermanent(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		err != nil && strings.Contains(err.Error(), "failed to create typed patch object")
}

// replicas decides on the number of replicas; nil: the controller does not scale this Model.
func (r *reconciler) replicas(ctx context.Context, m *Model, is *appsv1.Deployment, exists bool, status *ModelStatus,
	say func(kind string, yes bool, reason, message string)) *int32 {
	if m.Spec.Replicas == nil {
		meta.RemoveStatusCondition(&status.Conditions, "Scaled")
		status.Needed = nil
		return nil
	}
	now, running := time.Now(), m.Spec.Replicas.Min
	if exists && is.Spec.Replicas != nil {
		running = *is.Spec.Replicas
	}
	s := r.scale(client.ObjectKeyFromObject(m), now, running)
	number, complete, err := r.servers.needed(ctx, m.Spec.Admin, m.name(), m.Spec.Version)
	switch {
	case complete:
		status.Needed = &number
		s.add(now, number)
		say("Scaled", true, "Asked", "all servers have reported the replicas that they need")
	case number > 0: // the missing servers may need more, so fewer cannot be enough
		s.add(now, max(number, s.replicas(now, m.scaleDownAfter(), *m.Spec.Replicas, running)))
		say("Scaled", false, "SomeServersAway", brief(err))
	case errors.Is(err, errNotAllowed):
		s.add(now, s.replicas(now, m.scaleDownAfter(), *m.Spec.Replicas, running))
		say("Scaled", false, "AdminNotAllowed", "nothing is scaled down or up: "+brief(err))
	default:
		s.add(now, s.replicas(now, m.scaleDownAfter(), *m.Spec.Replicas, running))
		say("Scaled", false, "NoServer", "nothing is scaled down or up: "+brief(err))
	}
	n := s.replicas(now, m.scaleDownAfter(), *m.Spec.Replicas, running)
	return &n
}

// brief returns the text of an error without local ports, which differ each time: a status that
// differs is written, and would start another reconciliation at once.
func brief(err error) string {
	text := err.Error()
	if len(text) > 512 {
		text = text[:512] + "..."
	}
	return ports.ReplaceAllString(text, "->")
}

// ports matches local ports, before the arrow, as in 10.0.0.1:40312->10.0.0.2:8002.
var ports = regexp.MustCompile(`:[0-9]+->`)

func (r *reconciler) scale(of types.NamespacedName, now time.Time, running int32) *scale {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.scales[of]
	if s == nil {
		s = &scale{}
		s.add(now, running)
		r.scales[of] = s
	}
	return s
}

func (r *reconciler) forget(of types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.scales, of)
}

// deployment returns the object to apply: the template, and the label that selects its pods.
func deployment(m *Model, replicas *int32) (map[string]any, error) {
	template := map[string]any{}
	if err := json.Unmarshal(m.Spec.Template.Raw, &template); err != nil {
		return nil, fmt.Errorf("spec.template: %w", err)
	}
	labels, _, err := unstructured.NestedStringMap(template, "metadata", "labels")
	if err != nil {
		return nil, fmt.Errorf("spec.template: %w", err)
	}
	if labels == nil {
		labels = map[string]string{}
	}
	labels[selected] = m.Name
	if err := unstructured.SetNestedStringMap(template, labels, "metadata", "labels"); err != nil {
		return nil, fmt.Errorf("spec.template: %w", err)
	}
	spec := map[string]any{
		"selector": map[string]any{"matchLabels": map[string]any{selected: m.Name}},
		"template": template,
	}
	if replicas != nil {
		spec["replicas"] = int64(*replicas)
	}
	own := map[string]any{}
	for key, value := range m.Labels {
		own[key] = value
	}
	return map[string]any{
		"apiVersion": "apps/v1",
		"kind":       "Deployment",
		"metadata": map[string]any{
			"name": m.Name, "namespace": m.Namespace, "labels": own,
			"ownerReferences": []any{map[string]any{
				"apiVersion": groupVersion.String(), "kind": "Model", "name": m.Name, "uid": string(m.UID),
				"controller": true, "blockOwnerDeletion": true,
			}},
		},
		"spec": spec,
	}, nil
}
