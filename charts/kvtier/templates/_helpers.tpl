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

{{/* An image's reference; call with (dict "root" $ "name" operator|agent). */}}
{{- define "kvtier.image" -}}
{{- $image := get .root.Values.images .name -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .root.Chart.AppVersion) -}}
{{- end }}
