package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
)

var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

// stream is one tenant's load: n servers in a namespace, at a rate or (rate 0) as fast as they are taken.
type stream struct {
	namespace   string
	n, parallel int
	rate        float64
	began       time.Time
	made        time.Duration
	failed      atomic.Int64
}

type streams []*stream

func (s *streams) String() string { return fmt.Sprint(len(*s)) }

func (s *streams) Set(text string) error {
	parts := strings.Split(text, ",")
	if len(parts) != 4 {
		return fmt.Errorf("want NAMESPACE,N,RATE,PARALLEL")
	}
	n, err1 := strconv.Atoi(parts[1])
	rate, err2 := strconv.ParseFloat(parts[2], 64)
	parallel, err3 := strconv.Atoi(parts[3])
	if err1 != nil || err2 != nil || err3 != nil {
		return fmt.Errorf("not numbers: %s", text)
	}
	*s = append(*s, &stream{namespace: parts[0], n: n, rate: rate, parallel: parallel})
	return nil
}

// life holds the moments of one server, all seen by this process.
type life struct{ asked, answered, added, child, settled time.Time }

type watcher struct {
	mu    sync.Mutex
	lives map[string]*life
	last  time.Time // of the latest moment of any life
}

// idle is for how long nothing has come.
func (w *watcher) idle() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.last)
}

func (w *watcher) at(key string) *life {
	l := w.lives[key]
	if l == nil {
		l = &life{}
		w.lives[key] = l
	}
	return l
}

func stamp(t *time.Time) {
	if t.IsZero() {
		*t = time.Now()
	}
}

// settled: the operator has said that the spec is rolled out.
func settled(u *unstructured.Unstructured) bool {
	all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, one := range all {
		c, _ := one.(map[string]any)
		if c["type"] == "RolledOut" && c["status"] == "True" {
			return true
		}
	}
	return false
}

func (w *watcher) follow(ctx context.Context, cfg *rest.Config, status bool) error {
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	heads, err := metadata.NewForConfig(cfg)
	if err != nil {
		return err
	}
	children := metadatainformer.NewFilteredMetadataInformer(heads, deployments, "", 0, cache.Indexers{}, nil).Informer()
	_, _ = children.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		m := o.(*metav1.PartialObjectMetadata)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.last = time.Now()
		stamp(&w.at(m.Namespace + "/" + m.Name).child)
	}})
	go children.Run(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), children.HasSynced)
	see := func(o any) {
		u := o.(*unstructured.Unstructured)
		w.mu.Lock()
		defer w.mu.Unlock()
		l := w.at(u.GetNamespace() + "/" + u.GetName())
		stamp(&l.added)
		if status && l.settled.IsZero() && settled(u) {
			l.settled = time.Now()
			w.last = l.settled
		}
	}
	crs := dynamicinformer.NewFilteredDynamicInformer(objects, servers, "", 0, cache.Indexers{}, nil).Informer()
	_, _ = crs.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, o any) { see(o) }})
	go crs.Run(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), crs.HasSynced)
	return nil
}

func (s *stream) create(ctx context.Context, c dynamic.Interface, body map[string]any, prefix string, w *watcher) {
	work := make(chan int)
	var wg sync.WaitGroup
	for range s.parallel {
		wg.Go(func() {
			for i := range work {
				u := (&unstructured.Unstructured{Object: body}).DeepCopy()
				u.SetName(fmt.Sprintf("%s%05d", prefix, i))
				key := s.namespace + "/" + u.GetName()
				w.mu.Lock()
				stamp(&w.at(key).asked)
				w.mu.Unlock()
				_, err := c.Resource(servers).Namespace(s.namespace).Create(ctx, u, metav1.CreateOptions{})
				w.mu.Lock()
				stamp(&w.at(key).answered)
				w.last = time.Now()
				w.mu.Unlock()
				if err != nil && s.failed.Add(1) == 1 {
					fmt.Fprintln(os.Stderr, err)
				}
			}
		})
	}
	s.began = time.Now()
	for i := range s.n {
		if s.rate > 0 { // open loop: the next one is due whatever became of the last
			time.Sleep(time.Until(s.began.Add(time.Duration(float64(i) / s.rate * float64(time.Second)))))
		}
		work <- i
	}
	close(work)
	wg.Wait()
	s.made = time.Since(s.began)
}

type result struct {
	Namespace      string             `json:"namespace"`
	N              int                `json:"n"`
	Rate           float64            `json:"rate"`
	Failed         int64              `json:"failed"`
	CreateSeconds  float64            `json:"createSeconds"`
	ChildSeconds   float64            `json:"childSeconds"`
	ChildPerSecond float64            `json:"childPerSecond"`
	ChildLag       map[string]float64 `json:"childLagMs"`
	AskedLag       map[string]float64 `json:"childLagFromRequestMs"`
	Settled        int                `json:"settled"`
	SettledSeconds float64            `json:"settledSeconds"`
	SettledLag     map[string]float64 `json:"settledLagMs"`
	Missing        int                `json:"missing"`
}

func quantiles(lags []float64) map[string]float64 {
	if len(lags) == 0 {
		return nil
	}
	sort.Float64s(lags)
	q := func(p float64) float64 { return float64(int(lags[int(p*float64(len(lags)-1))]*1e4)) / 10 }
	return map[string]float64{"p50": q(.5), "p90": q(.9), "p99": q(.99), "max": q(1)}
}

func (s *stream) result(w *watcher, prefix string) result {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := result{Namespace: s.namespace, N: s.n, Rate: s.rate, Failed: s.failed.Load(), CreateSeconds: s.made.Seconds()}
	var child, asked, done []float64
	for i := range s.n {
		l := w.at(fmt.Sprintf("%s/%s%05d", s.namespace, prefix, i))
		from := l.answered
		if !l.added.IsZero() && l.added.Before(from) {
			from = l.added
		}
		if l.child.IsZero() {
			r.Missing++
			continue
		}
		child = append(child, max(0, l.child.Sub(from).Seconds()))
		asked = append(asked, l.child.Sub(l.asked).Seconds())
		r.ChildSeconds = max(r.ChildSeconds, l.child.Sub(s.began).Seconds())
		if !l.settled.IsZero() {
			r.Settled++
			done = append(done, max(0, l.settled.Sub(from).Seconds()))
			r.SettledSeconds = max(r.SettledSeconds, l.settled.Sub(s.began).Seconds())
		}
	}
	if r.ChildSeconds > 0 {
		r.ChildPerSecond = float64(s.n-r.Missing) / r.ChildSeconds
	}
	r.ChildLag, r.AskedLag, r.SettledLag = quantiles(child), quantiles(asked), quantiles(done)
	return r
}

func load(args []string) error {
	fs := flag.NewFlagSet("load", flag.ExitOnError)
	var all streams
	fs.Var(&all, "stream", "NAMESPACE,N,RATE,PARALLEL; repeated for several tenants, which begin together")
	path := fs.String("server", "", "JSON file with the InferenceServer to create")
	prefix := fs.String("prefix", "s", "of the names")
	status := fs.Bool("settle", true, "wait until each says RolledOut")
	children := fs.Bool("children", true, "wait for a Deployment of each")
	limit := fs.Duration("limit", 10*time.Minute, "give up waiting after this")
	stall := fs.Duration("stall", 45*time.Second, "give up when nothing has come for so long")
	_ = fs.Parse(args)
	raw, err := os.ReadFile(*path)
	if err != nil {
		return err
	}
	var body map[string]any
	if err := json.Unmarshal(raw, &body); err != nil {
		return err
	}
	ctx, cfg := context.Background(), rest.CopyConfig(ctrl.GetConfigOrDie())
	cfg.QPS = -1
	cfg.UserAgent = "bench-loader"
	w := &watcher{lives: map[string]*life{}}
	if *children {
		if err := w.follow(ctx, cfg, *status); err != nil {
			return err
		}
	}
	c, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() { s.create(ctx, c, body, *prefix, w) })
	}
	wg.Wait()
	fmt.Fprintln(os.Stderr, "created")
	announced, total := false, 0
	for _, s := range all {
		total += s.n
	}
	pause := time.Duration(20+total/50) * time.Millisecond // looking at all of them must stay cheap
	for end := time.Now().Add(*limit); time.Now().Before(end) && w.idle() < *stall; time.Sleep(pause) {
		born, done := w.progress(all, *prefix)
		if !announced && (born || !*children) {
			announced = true
			fmt.Fprintln(os.Stderr, "children")
		}
		if !*children || born && (done || !*status) {
			break
		}
	}
	var out []result
	for _, s := range all {
		out = append(out, s.result(w, *prefix))
	}
	text, _ := json.Marshal(out)
	fmt.Println(string(text))
	return nil
}

// progress says whether each server has its child, and whether each is settled.
func (w *watcher) progress(all streams, prefix string) (born, done bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	born, done = true, true
	for _, s := range all {
		for i := range s.n {
			l := w.at(fmt.Sprintf("%s/%s%05d", s.namespace, prefix, i))
			born = born && !l.child.IsZero()
			if done = done && !l.settled.IsZero(); !born && !done {
				return
			}
		}
	}
	return
}
