{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "millrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The longest suffix of a name is "-endpoint-picker". */}}
{{- define "millrace.fullname" -}}
{{- $name := include "millrace.name" . -}}
{{- $both := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $both .Values.fullnameOverride | trunc 46 | trimSuffix "-" -}}
{{- end -}}

{{- define "millrace.selectorLabels" -}}
app.kubernetes.io/name: {{ include "millrace.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "millrace.labels" -}}
{{ include "millrace.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "millrace.serviceAccountName" -}}
{{- ternary (default (include "millrace.fullname" .) .Values.serviceAccount.name) (default "default" .Values.serviceAccount.name) .Values.serviceAccount.create -}}
{{- end -}}

{{- define "millrace.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the program needs from SIGTERM to its end: its own window, the drain, and 4 s for last words and to end. */}}
{{- define "millrace.drainSeconds" -}}
{{- $drain := dig "drain" dict .Values.config -}}
{{- $ms := add (int (dig "pre_stop_ms" 2000 $drain)) (int (dig "timeout_ms" 30000 $drain)) -}}
{{- add (ceil (divf $ms 1000)) 4 -}}
{{- end -}}

{{- define "millrace.preStopSeconds" -}}
{{- dig "preStop" "sleep" "seconds" .Values.shutdown.preStopSeconds .Values.lifecycle | int -}}
{{- end -}}

{{/* The file, a key a line: JSON is YAML, and writes large numbers in digits, which toYaml does not. */}}
{{- define "millrace.config" -}}
{{- range $key, $value := .Values.config }}
{{ $key }}: {{ toJson $value }}
{{- end }}
{{- end -}}

{{- define "millrace.secretEnv" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret.name }}
      key: {{ .secret.key }}
{{- end -}}

{{/* redis://[user][:password]@host:port/db; the kubelet puts the password in. */}}
{{- define "millrace.redisUrl" -}}
{{- with .Values.redis.external -}}
{{- $password := ternary ":$(REDIS_PASSWORD)" "" (ne .passwordSecret.name "") -}}
{{- $user := ternary (printf "%s%s@" .username $password) "" (ne (printf "%s%s" .username $password) "") -}}
redis://{{ $user }}{{ .host }}:{{ int .port }}/{{ int .database }}
{{- end -}}
{{- end -}}

{{- define "millrace.redisEnv" -}}
{{- $redis := .Values.redis -}}
{{- if eq $redis.mode "sidecar" }}
- name: MILLRACE_REDIS_URL
  value: unix:///run/redis/redis.sock?db=0
{{- else if eq $redis.mode "external" }}
{{- if $redis.external.urlSecret.name }}
{{ include "millrace.secretEnv" (dict "name" "MILLRACE_REDIS_URL" "secret" $redis.external.urlSecret) }}
{{- else }}
{{- with $redis.external.passwordSecret }}{{ if .name }}
{{ include "millrace.secretEnv" (dict "name" "REDIS_PASSWORD" "secret" .) }}
{{- end }}{{ end }}
- name: MILLRACE_REDIS_URL
  value: {{ include "millrace.redisUrl" . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "millrace.tlsEnv" -}}
{{- if .Values.tls.secretName }}
- name: MILLRACE_TLS_CERTIFICATE
  value: /etc/millrace-tls/tls.crt
- name: MILLRACE_TLS_PRIVATE_KEY
  value: /etc/millrace-tls/tls.key
{{- if ne .Values.tls.clientAuth "none" }}
- name: MILLRACE_TLS_CLIENT_CA
  value: {{ ternary "/etc/millrace-client-ca/ca.crt" "/etc/millrace-tls/ca.crt" (ne .Values.tls.clientCASecretName "") }}
- name: MILLRACE_TLS_CLIENT_AUTH
  value: {{ .Values.tls.clientAuth }}
{{- end }}
{{- end }}
{{- end -}}

{{/* With a GPU the program must not fall back to the CPU, as it would by itself. */}}
{{- define "millrace.env" -}}
{{- include "millrace.redisEnv" . }}
{{- if and .Values.gpu.enabled (not .Values.config.backend) }}
- name: MILLRACE_BACKEND
  value: cuda
{{- end }}
{{- with .Values.tenantsSecret }}{{ if .name }}
{{ include "millrace.secretEnv" (dict "name" "MILLRACE_TENANTS" "secret" .) }}
{{- end }}{{ end }}
{{- with .Values.adminSecret }}{{ if .name }}
- name: MILLRACE_ADMIN_ENABLE
  value: "true"
{{ include "millrace.secretEnv" (dict "name" "MILLRACE_ADMIN_CALLERS" "secret" .) }}
{{- end }}{{ end }}
{{- include "millrace.tlsEnv" . }}
{{- with .Values.cacheSaltSecret }}{{ if .name }}
{{ include "millrace.secretEnv" (dict "name" "MILLRACE_CACHE_SALT_SECRET" "secret" .) }}
{{- end }}{{ end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The resources as given, and the GPUs beside them. */}}
{{- define "millrace.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if .Values.gpu.enabled -}}
{{- $limits := merge (dict .Values.gpu.resourceName (int .Values.gpu.count)) (default dict $resources.limits) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "millrace.topologySpread" -}}
{{- $selector := dict "matchLabels" (include "millrace.selectorLabels" . | fromYaml) -}}
{{- $constraints := list -}}
{{- range .Values.topologySpreadConstraints -}}
{{- $constraints = append $constraints (merge (deepCopy .) (dict "labelSelector" $selector)) -}}
{{- end -}}
{{- toYaml $constraints -}}
{{- end -}}

{{/* Ready: by the health port where there is one. Alive: by HTTP, since a server that loads does not serve yet. */}}
{{- define "millrace.readyProbe" -}}
{{- if .root.Values.healthListener.enabled -}}
grpc: {port: {{ int .root.Values.ports.health }}}
{{ toYaml .with }}
{{- else -}}
{{- include "millrace.probe" (dict "path" "/readyz" "with" .with) -}}
{{- end -}}
{{- end -}}

{{- define "millrace.probe" -}}
httpGet: {path: {{ .path }}, port: metrics}
{{ toYaml .with }}
{{- end -}}
