{{- define "evac.name" -}}
{{- if contains "evac" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-evac" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- define "evac.selector" -}}
app.kubernetes.io/name: evac
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "evac.labels" -}}
{{ include "evac.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "evac.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Labels, annotations and selectors, whose values are strings: --set makes true and 1 of what looks like them. */}}
{{- define "evac.strings" -}}
{{- range $key, $value := . }}
{{ $key | quote }}: {{ $value | toString | quote }}
{{- end -}}
{{- end -}}

{{/* Slots, other nodes' bytes, what the kernel keeps of each GiB of them (5 MiB), and evacd itself: all is charged to the pod. */}}
{{- define "evac.memoryMiB" -}}
{{- with .Values.memory -}}
{{- add (mul 1029 (add (int .budgetGiB) (int .peersGiB))) (int .overheadMiB) -}}
{{- end -}}
{{- end -}}
