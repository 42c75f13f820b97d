package main

import (
	"context"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Times that govern the passing of the Lease to another controller. They are longer than a short
// outage of the apiserver.
const (
	leaseFor     = 30 * time.Second
	renewFor     = 20 * time.Second
	retryEvery   = 4 * time.Second
	restartDelay = time.Second      // pause after a manager has failed
	apiTimeout   = 10 * time.Second // of one request
	mostDelay    = 15 * time.Second // between two tries of the same Model
)

type options struct {
	kubeconfig, namespace, admin, ca, health, lease string
	allowed                                         []string
	poll                                            time.Duration
}

// parse reads the command line, with a flag set of its own: libraries register flags in the
// process's default set.
func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("shiva-controller", flag.ExitOnError)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file` that names the apiserver; without it, the service account of the pod is used")
	f.StringVar(&o.namespace, "namespace", "", "namespace of the Models and of the Lease")
	f.StringVar(&o.admin, "admin", "", "`host:port` of the servers' admin APIs, for Models that name none; tls://host:port for TLS. A token is sent with TLS only, or to a loopback address")
	f.Func("allow-admin", "another `host:port` or tls://host:port that Models may name; may be given several times",
		func(address string) error {
			o.allowed = append(o.allowed, address)
			return nil
		})
	f.StringVar(&o.ca, "tls-ca", "", "of tls://: `file` of trusted CA certificates; without it, those of the system")
	f.StringVar(&o.health, "health", ":8081", "`host:port` of /livez and /readyz")
	f.StringVar(&o.lease, "lease", manager, "name of the Lease by which one of several controllers acts; empty: all act")
	f.DurationVar(&o.poll, "poll", 5*time.Second, "how often servers are asked")
	_ = f.Parse(args) // ends the process on wrong flags
	if f.NArg() > 0 || o.namespace == "" || o.poll <= 0 {
		err = errors.New("expected --namespace, a --poll above 0, and no arguments; -h lists the flags")
	}
	return o, err
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "shiva-controller:", err)
		os.Exit(2)
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, log); err != nil {
		log.Error("cannot run", "error", err)
		os.Exit(1)
	}
}

// run runs managers, one after the other: a manager ends when it loses its Lease, or cannot begin
// while the apiserver is unreachable. Do not end the process instead: the node would wait longer
// and longer before each restart.
func run(ctx context.Context, o options, log *slog.Logger) error {
	handler := logr.FromSlogHandler(log.Handler())
	ctrl.SetLogger(handler)
	klog.SetLogger(handler)
	config, err := connect(o.kubeconfig)
	if err != nil {
		return err
	}
	config.Timeout = apiTimeout
	roots, err := trusted(o.ca)
	if err != nil {
		return err
	}
	asked, err := newServers(o.admin, o.allowed, roots, o.poll/2)
	if err != nil {
		return err
	}
	var ready atomic.Bool
	health, err := net.Listen("tcp", o.health)
	if err != nil {
		return err
	}
	answers := http.Server{Handler: probes(&ready), ReadHeaderTimeout: apiTimeout}
	go func() { // ends with Close
		if err := answers.Serve(health); !errors.Is(err, http.ErrServerClosed) {
			log.Error("health is not served any more", "error", err)
		}
	}()
	defer answers.Close()
	r := &reconciler{servers: asked, poll: o.poll, scales: map[types.NamespacedName]*scale{}}
	for {
		err := manage(ctx, config, o, r, &ready)
		ready.Store(false)
		if ctx.Err() != nil {
			return nil
		}
		log.Error("the manager has ended; starting another one", "error", err)
		select {
		case <-time.After(restartDelay):
		case <-ctx.Done():
			return nil
		}
	}
}

// trusted reads CA certificates; without a file they are nil, which means those of the system.
func trusted(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--tls-ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--tls-ca %s: expected certificates in PEM", file)
	}
	return roots, nil
}

func connect(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// manage runs one manager until ctx ends, or it fails.
func manage(ctx context.Context, config *rest.Config, o options, r *reconciler, ready *atomic.Bool) error {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	addToScheme(scheme)
	leaseDuration, renewDeadline, retryPeriod := leaseFor, renewFor, retryEvery
	m, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cache.Options{DefaultNamespaces: map[string]cache.Config{o.namespace: {}}},
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		LeaderElection:                o.lease != "",
		LeaderElectionID:              o.lease,
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &leaseDuration,
		RenewDeadline:                 &renewDeadline,
		RetryPeriod:                   &retryPeriod,
	})
	if err != nil {
		return err
	}
	r.Client, r.live = m.GetClient(), m.GetAPIReader()
	unique := true // in a process, which may run several managers one after the other
	err = builder.ControllerManagedBy(m).Named("model").For(&Model{}).Owns(&appsv1.Deployment{}).
		WithOptions(controller.Options{
			SkipNameValidation:      &unique,
			MaxConcurrentReconciles: 8,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](
				100*time.Millisecond, mostDelay),
		}).Complete(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx
		// The manager starts informers only once it has the Lease; without this one the sync below
		// would wait for none.
		for ctx.Err() == nil {
			if _, err := m.GetCache().GetInformer(ctx, &Model{}); err == nil && m.GetCache().WaitForCacheSync(ctx) {
				ready.Store(true)
				return
			}
			time.Sleep(restartDelay)
		}
	}()
	return m.Start(ctx)
}

// probes answers health checks: live while the process runs, since a restart would not bring the
// apiserver back; ready once a manager's cache is in sync with the apiserver.
func probes(ready *atomic.Bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "live") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			http.Error(w, "the apiserver has not answered yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	return mux
}
