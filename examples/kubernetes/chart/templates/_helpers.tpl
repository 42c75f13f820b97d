{{- define "shivad.name" -}}
{{- if contains "shivad" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-shivad" (.Release.Name | trunc 33 | trimSuffix "-") }}{{ end }}
{{- end }}

{{/* The labels that select the pods of a component: a dict of root and component. */}}
{{- define "shivad.selector" -}}
app.kubernetes.io/name: shivad
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "shivad.labels" -}}
{{ include "shivad.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{- define "shivad.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The address of a door, with TLS where it is enabled: a dict of root, door and port. */}}
{{- define "shivad.address" -}}
{{- if and .root.Values.tls.secret (has .door .root.Values.tls.doors) }}tls://{{ end }}:{{ .port }}
{{- end }}

{{/* The scheme of the admin API. */}}
{{- define "shivad.adminScheme" -}}
http{{ if and .Values.tls.secret (has "admin" .Values.tls.doors) }}s{{ end }}
{{- end }}

{{/* Fails where what, a client of the admin API, cannot reach it: a dict of root and what. */}}
{{- define "shivad.needsAdmin" -}}
{{- if not .root.Values.server.adminOpen }}
{{- fail (printf "%s asks the servers' admin API, which is closed to other pods: expected server.adminOpen: true" .what) }}
{{- end }}
{{- end }}

{{- define "shivad.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The restrictions of a pod's container: it has no privileges. */}}
{{- define "shivad.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* shivad.toml. */}}
{{- define "shivad.config" -}}
{{- range list "server" "state" }}
{{- if regexMatch (printf "(?m)^\\s*\\[\\s*%s\\s*\\]" .) $.Values.server.config }}
{{- fail (printf "server.config has a table [%s], which the chart writes itself: use server.drainSeconds, server.requiredModels and redis" .) }}
{{- end }}
{{- end }}
{{- if and .Values.redis.url .Values.redis.secret }}
{{- fail "redis.url and redis.secret are given: expected one of them" }}
{{- end -}}
[server]
drain = "{{ .Values.server.drainSeconds }}s"
required_models = {{ .Values.server.requiredModels | toJson }}
{{- if or .Values.redis.url .Values.redis.secret }}

[state]
required = {{ .Values.redis.required }}
{{- end }}
{{- with .Values.server.config }}

{{ . | trim }}
{{- end }}
{{- end }}
