package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	gv      = schema.GroupVersion{Group: "plimsoll.dev", Version: "v1alpha1"}
	servers = gv.WithResource("inferenceservers")
)

const (
	kind        = "InferenceServer"
	serverLabel = "plimsoll.dev/server"
)

// ServerSpec is what the floor reads of the spec; the rest is dropped on decoding, as a typed client does.
type ServerSpec struct {
	Replicas *int32 `json:"replicas,omitempty"`
}

// ServerStatus is what the floor writes.
type ServerStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Replicas           int32              `json:"replicas,omitempty"`
	ReadyReplicas      int32              `json:"readyReplicas,omitempty"`
	Selector           string             `json:"selector,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// Server is one InferenceServer.
type Server struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              ServerSpec   `json:"spec"`
	Status            ServerStatus `json:"status,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (s *Server) DeepCopyObject() runtime.Object {
	c := *s
	s.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	if s.Spec.Replicas != nil {
		r := *s.Spec.Replicas
		c.Spec.Replicas = &r
	}
	c.Status.Conditions = append([]metav1.Condition(nil), s.Status.Conditions...)
	return &c
}

// ServerList is a list of them.
type ServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Server `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *ServerList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]Server, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*Server)
	}
	return &c
}
