package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const owner = "go-floor"

// objects are the children as the operator under comparison renders them, so that the API server gets equal payloads.
type objects struct {
	Deployment appsv1ac.DeploymentApplyConfiguration `json:"deployment"`
	Service    corev1ac.ServiceApplyConfiguration    `json:"service"`
}

type reconciler struct {
	client.Client
	want       []byte // an "objects", decoded for each call: Apply writes the answer into what it is given
	frozen     bool
	n, applies atomic.Int64
}

// Reconcile applies both children once per generation and patches the status when it changes.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	r.n.Add(1)
	var s Server
	if err := r.Get(ctx, req.NamespacedName, &s); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !s.DeletionTimestamp.IsZero() || r.frozen {
		return ctrl.Result{}, nil
	}
	var dep appsv1.Deployment
	var svc corev1.Service
	have := r.Get(ctx, req.NamespacedName, &dep) == nil
	haveService := r.Get(ctx, req.NamespacedName, &svc) == nil
	applied := s.Status.ObservedGeneration == s.Generation
	if !have || !applied {
		r.applies.Add(1)
		if err := r.Apply(ctx, deployment(r.objects(), &s), client.FieldOwner(owner), client.ForceOwnership); err != nil {
			return ctrl.Result{}, err
		}
	}
	if !haveService || !applied {
		r.applies.Add(1)
		if err := r.Apply(ctx, service(r.objects(), &s), client.FieldOwner(owner), client.ForceOwnership); err != nil {
			return ctrl.Result{}, err
		}
	}
	next := statusOf(&s, &dep, have)
	if same(next, s.Status) {
		return ctrl.Result{}, nil
	}
	base := s.DeepCopyObject().(*Server)
	s.Status = next
	return ctrl.Result{}, r.Status().Patch(ctx, &s, client.MergeFrom(base))
}

func (r *reconciler) objects() (found objects) {
	if err := json.Unmarshal(r.want, &found); err != nil {
		panic(err) // it was read once at the start
	}
	return found
}

func deployment(want objects, s *Server) *appsv1ac.DeploymentApplyConfiguration {
	labels := map[string]string{serverLabel: s.Name, "app.kubernetes.io/managed-by": owner}
	selector := map[string]string{serverLabel: s.Name}
	spec := *want.Deployment.Spec
	template := *spec.Template
	meta := *template.ObjectMetaApplyConfiguration
	meta.Labels = labels
	template.ObjectMetaApplyConfiguration = &meta
	spec.Template = &template
	spec.Selector = metav1ac.LabelSelector().WithMatchLabels(selector)
	spec.Replicas = s.Spec.Replicas
	return appsv1ac.Deployment(s.Name, s.Namespace).WithLabels(labels).WithOwnerReferences(ref(s)).WithSpec(&spec)
}

func service(want objects, s *Server) *corev1ac.ServiceApplyConfiguration {
	spec := *want.Service.Spec
	spec.Selector = map[string]string{serverLabel: s.Name}
	labels := map[string]string{serverLabel: s.Name, "app.kubernetes.io/managed-by": owner}
	return corev1ac.Service(s.Name, s.Namespace).WithLabels(labels).WithOwnerReferences(ref(s)).WithSpec(&spec)
}

func ref(s *Server) *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().WithAPIVersion(gv.String()).WithKind(kind).WithName(s.Name).WithUID(s.UID).
		WithController(true).WithBlockOwnerDeletion(true)
}

func statusOf(s *Server, dep *appsv1.Deployment, have bool) ServerStatus {
	next := ServerStatus{
		ObservedGeneration: s.Generation, Replicas: dep.Status.Replicas, ReadyReplicas: dep.Status.ReadyReplicas,
		Selector: serverLabel + "=" + s.Name, Conditions: append([]metav1.Condition(nil), s.Status.Conditions...),
	}
	rolled := have && dep.Status.ObservedGeneration >= dep.Generation &&
		dep.Status.ReadyReplicas == *s.Spec.Replicas
	status, reason := metav1.ConditionFalse, "Progressing"
	if rolled {
		status, reason = metav1.ConditionTrue, "RolledOut"
	}
	for _, kind := range []string{"Accepted", "Ready", "RolledOut"} {
		value, why := status, reason
		if kind == "Accepted" {
			value, why = metav1.ConditionTrue, "Valid"
		}
		set(&next.Conditions, metav1.Condition{
			Type: kind, Status: value, Reason: why, ObservedGeneration: s.Generation,
			Message: "The Deployment has " + fmt.Sprint(dep.Status.ReadyReplicas) + " ready replicas.",
		})
	}
	return next
}

func set(all *[]metav1.Condition, c metav1.Condition) {
	for i := range *all {
		if old := &(*all)[i]; old.Type == c.Type {
			c.LastTransitionTime = old.LastTransitionTime
			if old.Status != c.Status {
				c.LastTransitionTime = metav1.Now()
			}
			*old = c
			return
		}
	}
	c.LastTransitionTime = metav1.Now()
	*all = append(*all, c)
}

func same(a, b ServerStatus) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

func run(args []string) error {
	fs := flag.NewFlagSet("run", flag.ExitOnError)
	conc := fs.Int("concurrency", 32, "MaxConcurrentReconciles")
	path := fs.String("objects", "", "JSON file with the Deployment and the Service to apply")
	frozen := fs.Bool("frozen", false, "write nothing: to measure the caches over the children of another operator")
	_ = fs.Parse(args)
	ctrl.SetLogger(zap.New())
	raw, err := os.ReadFile(*path)
	if err != nil {
		return err
	}
	r := &reconciler{frozen: *frozen, want: raw}
	if err := json.Unmarshal(raw, &objects{}); err != nil {
		return err
	}
	cfg := ctrl.GetConfigOrDie()
	cfg.QPS = -1
	sch := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(sch); err != nil {
		return err
	}
	sch.AddKnownTypeWithName(gv.WithKind(kind), &Server{})
	sch.AddKnownTypeWithName(gv.WithKind(kind+"List"), &ServerList{})
	metav1.AddToGroupVersion(sch, gv)
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: sch, Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
	})
	if err != nil {
		return err
	}
	r.Client = mgr.GetClient()
	if err := ctrl.NewControllerManagedBy(mgr).Named("floor").For(&Server{}).Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: *conc}).Complete(r); err != nil {
		return err
	}
	go func() {
		for last := int64(-1); ; time.Sleep(2 * time.Second) {
			if n := r.n.Load(); n != last {
				fmt.Printf("reconciles %d applies %d\n", n, r.applies.Load())
				last = n
			}
		}
	}()
	return mgr.Start(ctrl.SetupSignalHandler())
}
