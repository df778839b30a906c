{{/* The binding of a policy, for the namespaces that this release has. Takes (list $ NAME). */}}
{{- define "plimsoll.policyBinding" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "plimsoll.labels" $root | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
  {{- with $root.Values.watch.namespaces }}
  matchResources:
    namespaceSelector:
      matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values:
        {{- toYaml . | nindent 8 }}
  {{- end }}
{{- end }}
