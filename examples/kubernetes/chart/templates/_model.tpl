{{/* The pod template of a model: a dict of root and model. */}}
{{- define "shivad.model" -}}
{{- $component := dict "root" .root "component" "model" -}}
metadata:
  labels:
    {{- include "shivad.labels" $component | nindent 4 }}
    shivad.github.io/model: {{ .model.name }}
    {{- with .model.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .model.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  {{- with include "shivad.pullSecrets" .root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  # A stopping model takes no new batches, and answers those that it has.
  terminationGracePeriodSeconds: 45
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: model
      image: {{ .model.image }}
      {{- with .model.command }}
      command: {{ . | toJson }}
      {{- end }}
      {{- with .model.args }}
      args: {{ . | toJson }}
      {{- end }}
      env:
        - name: SHIVA_SERVERS
          value: {{ if and .root.Values.tls.secret (has "containers" .root.Values.tls.doors) }}tls://{{ end }}{{ include "shivad.name" .root }}-internal:7000
        {{- if .model.health }}
        - {name: SHIVA_HEALTH, value: ":8081"}
        {{- end }}
        {{- if .model.tokenSecret }}
        - {name: SHIVA_TOKEN_FILE, value: /etc/shivad-token/token}
        {{- end }}
        {{- with .model.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if .model.health }}
      ports:
        - {name: health, containerPort: 8081}
      # Ready: the model has loaded, and a server can send batches to it.
      readinessProbe:
        httpGet: {path: /readyz, port: health}
        periodSeconds: 5
        timeoutSeconds: 5
      # Live: the model loads, computes, or waits for a server, and is not stuck in a batch.
      livenessProbe:
        httpGet: {path: /livez, port: health}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      {{- end }}
      securityContext:
        {{- include "shivad.restricted" . | nindent 8 }}
      {{- with .model.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if .model.tokenSecret }}
        - {name: token, mountPath: /etc/shivad-token, readOnly: true}
        {{- end }}
        {{- with .model.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- if .model.tokenSecret }}
    - name: token
      secret: {secretName: {{ .model.tokenSecret }}}
    {{- end }}
    {{- with .model.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .model.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .model.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .model.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .model.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
{{- end }}
