package grpc

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/access"
)

// needs makes a rig report that model m needs the number in n.
func needs(n *atomic.Int64) change {
	return func(cfg *Config, _ *int64) {
		cfg.Needed = func(model, version string) (int, error) {
			if model != "m" || version != "" && version != "1" {
				return 0, fmt.Errorf("%w: %q is an application", scheduler.ErrInvalidInput, model)
			}
			return int(n.Load()), nil
		}
	}
}

// ref is what KEDA sends for a trigger with this metadata.
func ref(pairs ...string) *pb.ScaledObjectRef {
	given := map[string]string{"scalerAddress": "shivad:8001", "enableTLS": "false"}
	for i := 0; i < len(pairs); i += 2 {
		given[pairs[i]] = pairs[i+1]
	}
	return &pb.ScaledObjectRef{Name: "m", Namespace: "default", ScalerMetadata: given}
}

// KEDA asks for the metric's name, target and value, and whether it is above 0, and is told when
// that changes.
func TestScaler(t *testing.T) {
	t.Parallel() // it waits
	var n atomic.Int64
	r := newRig(t, needs(&n))
	ctx := t.Context()
	c := pb.NewExternalScalerClient(r.dial())
	spec, err := c.GetMetricSpec(ctx, ref("model", "m"))
	if err != nil || len(spec.MetricSpecs) != 1 || spec.MetricSpecs[0].TargetSize != 1 ||
		spec.MetricSpecs[0].TargetSizeFloat != 1 {
		t.Fatalf("%v %v", spec, err)
	}
	name := spec.MetricSpecs[0].MetricName
	stream, err := c.StreamIsActive(ctx, ref("model", "m"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{0, 4, 2, 0} {
		n.Store(want)
		for _, version := range []string{"", "1"} {
			q := ref("model", "m", "version", version)
			a, err := c.GetMetrics(ctx, &pb.GetMetricsRequest{ScaledObjectRef: q, MetricName: name})
			if err != nil || len(a.MetricValues) != 1 || a.MetricValues[0].MetricName != name ||
				a.MetricValues[0].MetricValue != want || a.MetricValues[0].MetricValueFloat != float64(want) {
				t.Errorf("%d: %v %v", want, a, err)
			}
			if a, err := c.IsActive(ctx, q); err != nil || a.Result != (want > 0) {
				t.Errorf("%d: %v %v", want, a, err)
			}
		}
		if want == 2 {
			continue // as active as with 4
		}
		if a, err := stream.Recv(); err != nil || a.Result != (want > 0) {
			t.Errorf("%d: the stream says %v %v", want, a, err)
		}
	}
	for _, c2 := range []struct {
		ref  *pb.ScaledObjectRef
		says []string
	}{
		{ref(), []string{"no model", "expected"}},
		{nil, []string{"no model"}},
		{ref("Model", "m"), []string{`"Model"`, "expected model, optionally version"}},
		{ref("model", "m", "modelName", "m"), []string{`"modelName"`}},
		{ref("model", "a/b"), []string{"scalerMetadata.model"}},
		{ref("model", "m", "version", "a/b"), []string{"scalerMetadata.version"}},
		{ref("model", "app"), []string{"is an application"}},
	} {
		_, err := c.IsActive(ctx, c2.ref)
		failed(t, err, codes.InvalidArgument, "InvalidInput", c2.says...)
		_, err = c.GetMetricSpec(ctx, c2.ref)
		failed(t, err, codes.InvalidArgument, "InvalidInput", c2.says...)
		_, err = c.GetMetrics(ctx, &pb.GetMetricsRequest{ScaledObjectRef: c2.ref, MetricName: name})
		failed(t, err, codes.InvalidArgument, "InvalidInput", c2.says...)
		s, err := c.StreamIsActive(ctx, c2.ref)
		if err == nil {
			_, err = s.Recv()
		}
		failed(t, err, codes.InvalidArgument, "InvalidInput", c2.says...)
	}
	_, err = c.GetMetrics(ctx, &pb.GetMetricsRequest{ScaledObjectRef: ref("model", "m"), MetricName: "s0-other"})
	failed(t, err, codes.InvalidArgument, "InvalidInput", `"s0-other"`, name)
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// The scaler shows a number only to clients that may see it at the admin door.
func TestScalerRights(t *testing.T) {
	var n atomic.Int64
	who := new(access.Identities)
	who.Replace([]access.Declaration{
		{Name: "keda", Tokens: []string{hashOf("keda")}, May: []string{"admin:read"}},
		{Name: "camera", Tokens: []string{hashOf("camera")}, May: []string{"infer"}},
	})
	r := newRig(t, needs(&n), func(cfg *Config, _ *int64) { cfg.Identities = who })
	c := pb.NewExternalScalerClient(r.dial())
	as := func(token string) error {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
		_, err := c.IsActive(ctx, ref("model", "m"))
		return err
	}
	if err := as("keda"); err != nil {
		t.Error(err)
	}
	failed(t, as("camera"), codes.PermissionDenied, "PermissionDenied", "admin:read")
	failed(t, as("nobody"), codes.Unauthenticated, "Unauthenticated")
}
