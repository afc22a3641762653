{{/* Labels of every object; call with (dict "root" $ "component" NAME). */}}
{{- define "kvtier.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{ include "kvtier.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: kvtier
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* Labels that select the pods of a component; they never change. */}}
{{- define "kvtier.selectorLabels" -}}
app.kubernetes.io/name: kvtier
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Image of a program; call with (dict "root" $ "name" operator|node|store). */}}
{{- define "kvtier.image" -}}
{{- $images := .root.Values.images -}}
{{- get $images .name | default (printf "%s/kvtier-%s:%s" $images.registry .name ($images.tag | default .root.Chart.AppVersion)) -}}
{{- end }}
