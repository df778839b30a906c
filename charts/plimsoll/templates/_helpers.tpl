{{/*
Names are fixed: one release per namespace, since the operator's Lease has a fixed name there. What is scoped to the cluster
carries the namespace where the release does not have the whole cluster.
*/}}
{{- define "plimsoll.scope" -}}
{{- if .Values.watch.namespaces }}-{{ .Release.Namespace }}{{ end }}
{{- end }}

{{- define "plimsoll.selectorLabels" -}}
app.kubernetes.io/name: plimsoll
app.kubernetes.io/component: operator
{{- end }}

{{/* Labels of every object. */}}
{{- define "plimsoll.labels" -}}
{{ include "plimsoll.selectorLabels" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: plimsoll
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The same with others, which win. Takes (list $ LABELS). */}}
{{- define "plimsoll.labelsWith" -}}
{{- merge (dict) (index . 1) (include "plimsoll.labels" (index . 0) | fromYaml) | toYaml -}}
{{- end }}

{{/* An image's full name. Takes (list $ "operator"). */}}
{{- define "plimsoll.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.image (index . 1) -}}
{{- printf "%s/%s:%s" $root.Values.image.registry $image.repository ($image.tag | default $root.Chart.AppVersion) -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end }}

{{- define "plimsoll.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ .Values.serviceAccount.name }}
{{- end }}

{{/*
What follows from the number of replicas, together, so that no choice of values can block an update or a drain:
 - one: Recreate. Its successor would only wait for the Lease. No budget, which would block every drain.
 - more: a standby is Ready, so an update moves on; either step is allowed, so that it moves without room for another pod, too.
   One at a time may be evicted, and one that is not ready always.
*/}}
{{- define "plimsoll.availability" -}}
{{- if gt (int .Values.replicas) 1 -}}
strategy:
  type: RollingUpdate
  rollingUpdate: {maxSurge: 1, maxUnavailable: 1}
disruptionBudget:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
topologySpreadConstraints:
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- topologyKey: {{ . }}
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "plimsoll.selectorLabels" $ | nindent 6 }}
{{- end }}
{{- else -}}
strategy: {type: Recreate}
{{- end -}}
{{- end }}

{{/* What the operator may do where it runs servers. It reads no Secret, holds no wildcard and grants no rights to anyone. */}}
{{- define "plimsoll.serverRules" -}}
- apiGroups: [plimsoll.dev]
  resources: [inferenceservers]
  verbs: [get, list, watch]
- apiGroups: [plimsoll.dev]
  resources: [inferenceservers/status]
  verbs: [patch]
# Children block their owner's deletion in the foreground; where OwnerReferencesPermissionEnforcement is on, saying so needs this.
- apiGroups: [plimsoll.dev]
  resources: [inferenceservers/finalizers]
  verbs: [update]
# A server-side apply of an absent object is a create. Nothing here is deleted by the operator: the garbage collector does.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
# Sizing pods are made and removed by the operator; server pods are only watched; everybody's are listed for what they hold of a node.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
# What an engine printed of its cache as it started, where no endpoint tells. Without this right that is not known, and said so.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# The template before one that was given up.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list]
# Listed for one pod at a time, for what a node autoscaler says of it.
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch, list]
# What engines of a namespace were found to need beside the computed reserve: one map, no other.
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [plimsoll-learned]
  verbs: [get, patch]
# An apply of an absent object is a create, and that has no name that a rule could be limited to.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
{{- end }}

{{- define "plimsoll.nodeRules" -}}
# The class label of the node on which a number was measured; and which nodes have a GPU free, for the strategy of a rollout.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list]
{{- end }}

{{- define "plimsoll.subject" -}}
- {kind: ServiceAccount, name: {{ .Values.serviceAccount.name }}, namespace: {{ .Release.Namespace }}}
{{- end }}
