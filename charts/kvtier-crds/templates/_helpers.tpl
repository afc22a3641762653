{{- define "kvtier-crds.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: crds
app.kubernetes.io/part-of: kvtier
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
