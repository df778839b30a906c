{{/* Who else owns an object: "release NAME in namespace NAMESPACE", or nothing. Takes (list $ OBJECT). */}}
{{- define "plimsoll.otherOwner" -}}
{{- $root := index . 0 -}}
{{- $annotations := (((index . 1) | default dict).metadata | default dict).annotations | default dict -}}
{{- $name := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- if and $name (or (ne $name $root.Release.Name) (ne $namespace $root.Release.Namespace)) -}}
release {{ $name }} in namespace {{ $namespace }}
{{- end -}}
{{- end }}

{{/*
Two operators that run the same servers would undo each other's work: each leads by the Lease of its own namespace. So a release
looks for others, by objects of fixed names, before Helm would complain about the first of them. Without a cluster (helm template)
nothing is found; nor is what no release owns: of that Helm itself speaks. Clusters are only asked for what installing needs anyway.
*/}}
{{- define "plimsoll.refuseSecond" -}}
{{- $rbac := "rbac.authorization.k8s.io/v1" -}}
{{- $here := lookup "apps/v1" "Deployment" .Release.Namespace "plimsoll-operator" -}}
{{- with include "plimsoll.otherOwner" (list . $here) -}}
{{- fail (printf "namespace %s already holds an operator, of %s. One namespace holds one: upgrade that release, or install into another namespace with watch.namespaces." $.Release.Namespace .) -}}
{{- end -}}
{{- $namespaced := .Values.watch.namespaces -}}
{{- if or (not $namespaced) .Values.crds.enabled .Values.rbac.aggregate .Values.rbac.nodes -}}
{{- $everywhere := lookup $rbac "ClusterRole" "" "plimsoll-operator" -}}
{{- with include "plimsoll.otherOwner" (list . $everywhere) -}}
{{- fail (printf "%s already runs the servers of all namespaces; two operators would undo each other's work. Upgrade that release, or give it watch.namespaces first." .) -}}
{{- end -}}
{{- if and $namespaced $everywhere (not (dig "metadata" "annotations" "meta.helm.sh/release-name" "" $everywhere)) -}}
{{- fail "an operator that Helm did not install (manifests/install.yaml) already runs the servers of all namespaces; two operators would undo each other's work. Delete it first, or take it over: see the chart's README." -}}
{{- end -}}
{{- end -}}
{{- if $namespaced -}}
{{- range $namespaced -}}
{{- $namespace := . -}}
{{- with include "plimsoll.otherOwner" (list $ (lookup $rbac "Role" . "plimsoll-servers")) -}}
{{- fail (printf "%s already runs the servers of namespace %s; two operators would undo each other's work. Take the namespace out of watch.namespaces of one of them." . $namespace) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- range (lookup $rbac "Role" "" "").items -}}
{{- if eq .metadata.name "plimsoll-servers" -}}
{{- $namespace := .metadata.namespace -}}
{{- with include "plimsoll.otherOwner" (list $ .) -}}
{{- fail (printf "%s already runs the servers of namespace %s; two operators would undo each other's work. Uninstall it first, or give this release other watch.namespaces." . $namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.crds.enabled -}}
{{- $crd := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "inferenceservers.plimsoll.dev" -}}
{{- with include "plimsoll.otherOwner" (list . $crd) -}}
{{- $owner := index $crd.metadata.annotations "meta.helm.sh/release-namespace" -}}
{{- $alive := lookup "apps/v1" "Deployment" $owner "plimsoll-operator" -}}
{{- if $alive -}}
{{- fail (printf "the CustomResourceDefinition inferenceservers.plimsoll.dev belongs to %s. Leave it there with crds.enabled=false and rbac.aggregate=false." .) -}}
{{- end -}}
{{- fail (printf "the CustomResourceDefinition inferenceservers.plimsoll.dev was left by %s, which is gone. Take it over: kubectl annotate crd inferenceservers.plimsoll.dev --overwrite meta.helm.sh/release-name=%s meta.helm.sh/release-namespace=%s" . $.Release.Name $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- if .Values.rbac.aggregate -}}
{{- with include "plimsoll.otherOwner" (list . (lookup $rbac "ClusterRole" "" "plimsoll-view")) -}}
{{- fail (printf "the ClusterRoles plimsoll-view and plimsoll-edit belong to %s. Leave them there with rbac.aggregate=false." .) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Values that are each right and together are not. */}}
{{- define "plimsoll.refuseValues" -}}
{{- range $field := list "commonLabels" "podLabels" -}}
{{- range $key, $_ := index $.Values $field -}}
{{- if regexMatch "^(app\\.kubernetes\\.io|helm\\.sh|rbac\\.authorization\\.k8s\\.io)/" $key -}}
{{- fail (printf "%s: %s is set by the chart; choose another label." $field $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled .Values.monitoring.podMonitor.enabled -}}
{{- fail "monitoring.serviceMonitor and monitoring.podMonitor would scrape each pod twice; enable one of them." -}}
{{- end -}}
{{- if and .Values.rbac.podsOfAllNamespaces (not .Values.rbac.nodes) -}}
{{- fail "rbac.podsOfAllNamespaces is of no use without rbac.nodes: free GPUs are computed from both." -}}
{{- end -}}
{{- if and .Values.admission.engineImages.enabled (not .Values.admission.engineImages.allowedPrefixes) -}}
{{- fail "admission.engineImages.allowedPrefixes is empty, so every server would be refused; name at least one, for example ghcr.io/modeltc/" -}}
{{- end -}}
{{- end }}
