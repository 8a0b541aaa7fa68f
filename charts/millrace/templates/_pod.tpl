{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "millrace.serverContainer" -}}
- name: millrace
  image: {{ include "millrace.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - serve
    - --model
    - {{ printf "/models/%s" .Values.model.path | quote }}
    - --listen
    - {{ printf "%s:%d" .Values.listenHost (int .Values.ports.grpc) | quote }}
    - --metrics-listen
    - {{ printf "%s:%d" .Values.listenHost (int .Values.ports.metrics) | quote }}
    {{- if .Values.healthListener.enabled }}
    - --health-listen
    - {{ printf "%s:%d" .Values.listenHost (int .Values.ports.health) | quote }}
    {{- end }}
    - --config
    - /etc/millrace/{{ ternary .Values.configSecret.key "millrace.yaml" (ne .Values.configSecret.name "") }}
  {{- with include "millrace.env" . | trim }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  ports:
    - {name: grpc, containerPort: {{ int .Values.ports.grpc }}, protocol: TCP}
    - {name: metrics, containerPort: {{ int .Values.ports.metrics }}, protocol: TCP}
    {{- if .Values.healthListener.enabled }}
    - {name: health, containerPort: {{ int .Values.ports.health }}, protocol: TCP}
    {{- end }}
  {{- with .Values.probes }}
  # Ready once the model is loaded: until then, and no longer than the budget, the other two wait.
  startupProbe:
    {{- $tries := ceil (divf .startBudgetSeconds .startup.periodSeconds) | int }}
    {{- include "millrace.readyProbe" (dict "root" $ "with" (merge (dict "failureThreshold" $tries) .startup)) | nindent 4 }}
  livenessProbe:
    {{- include "millrace.probe" (dict "path" "/livez" "with" .liveness) | nindent 4 }}
  readinessProbe:
    {{- include "millrace.readyProbe" (dict "root" $ "with" .readiness) | nindent 4 }}
  {{- end }}
  {{- $lifecycle := deepCopy .Values.lifecycle }}
  {{- if and (not (hasKey $lifecycle "preStop")) (gt (int .Values.shutdown.preStopSeconds) 0) }}
  {{- $_ := set $lifecycle "preStop" (dict "sleep" (dict "seconds" (int .Values.shutdown.preStopSeconds))) }}
  {{- end }}
  {{- with $lifecycle }}
  lifecycle:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- include "millrace.resources" . | nindent 4 }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    - {name: config, mountPath: /etc/millrace, readOnly: true}
    - name: model
      mountPath: /models
      readOnly: true
      {{- if and (eq .Values.model.source "pvc") .Values.model.pvc.subPath }}
      subPath: {{ .Values.model.pvc.subPath | quote }}
      {{- end }}
    {{- if .Values.tls.secretName }}
    - {name: tls, mountPath: /etc/millrace-tls, readOnly: true}
    {{- end }}
    {{- if .Values.tls.clientCASecretName }}
    - {name: client-ca, mountPath: /etc/millrace-client-ca, readOnly: true}
    {{- end }}
    - {name: scratch, mountPath: /tmp}
    - {name: shm, mountPath: /dev/shm}
    {{- if eq .Values.redis.mode "sidecar" }}
    - {name: redis, mountPath: /run/redis}
    {{- end }}
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Starts before the server and ends after it. It has a socket and no port. */}}
{{- define "millrace.redisContainer" -}}
{{- with .Values.redis.sidecar -}}
- name: redis
  image: {{ .image }}
  imagePullPolicy: {{ .pullPolicy }}
  restartPolicy: Always
  command:
    {{- toYaml .command | nindent 4 }}
  args:
    - --port
    - "0"
    - --unixsocket
    - /run/redis/redis.sock
    - --unixsocketperm
    - "770"
    - --dir
    - /run/redis
    - --save
    - ""
    - --appendonly
    - "no"
    - --maxmemory
    - {{ .maxmemory | quote }}
    - --maxmemory-policy
    - volatile-ttl
  startupProbe:
    exec: {command: [test, -S, /run/redis/redis.sock]}
    periodSeconds: 1
    failureThreshold: 30
  resources:
    {{- toYaml .resources | nindent 4 }}
  securityContext:
    {{- toYaml $.Values.securityContext | nindent 4 }}
  volumeMounts:
    - {name: redis, mountPath: /run/redis}
{{- end -}}
{{- end -}}

{{/* Fetches to a second name, so that the model's own is whole or not there. */}}
{{- define "millrace.initContainer" -}}
{{- with .Values.model -}}
- name: model
  image: {{ .init.image }}
  {{- if .init.command }}
  command:
    {{- toYaml .init.command | nindent 4 }}
  {{- with .init.args }}
  args:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- else }}
  command: [sh, -euc]
  args:
    - |
      if echo "$SHA256  $FILE" | sha256sum -c -s 2>/dev/null; then exit 0; fi
      mkdir -p "$(dirname "$FILE")"
      curl --fail --location --no-progress-meter --retry 5 --retry-all-errors --output "$FILE.part" "$URL"
      echo "$SHA256  $FILE.part" | sha256sum -c
      mv "$FILE.part" "$FILE"
  {{- end }}
  env:
    {{- if not .init.command }}
    - {name: FILE, value: {{ printf "/models/%s" .path | quote }}}
    - {name: URL, value: {{ .init.url | quote }}}
    - {name: SHA256, value: {{ .init.sha256 | quote }}}
    {{- end }}
    {{- with .init.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  resources:
    {{- toYaml .init.resources | nindent 4 }}
  securityContext:
    {{- toYaml $.Values.securityContext | nindent 4 }}
  volumeMounts:
    - {name: model, mountPath: /models}
    - {name: scratch, mountPath: /tmp}
{{- end -}}
{{- end -}}

{{- define "millrace.volumes" -}}
- name: config
  {{- if .Values.configSecret.name }}
  secret: {secretName: {{ .Values.configSecret.name }}, defaultMode: 0440}
  {{- else }}
  configMap: {name: {{ include "millrace.fullname" . }}-config}
  {{- end }}
- name: model
  {{- with .Values.model }}
  {{- if eq .source "pvc" }}
  persistentVolumeClaim: {claimName: {{ .pvc.claimName }}, readOnly: true}
  {{- else if eq .source "image" }}
  image: {reference: {{ .image.reference | quote }}, pullPolicy: {{ .image.pullPolicy }}}
  {{- else }}
  emptyDir: {{ ternary (dict "sizeLimit" .init.sizeLimit) dict (ne .init.sizeLimit "") | toJson }}
  {{- end }}
  {{- end }}
{{- with .Values.tls }}
{{- if .secretName }}
- name: tls
  secret: {secretName: {{ .secretName }}, defaultMode: 0440}
{{- end }}
{{- if .clientCASecretName }}
- name: client-ca
  secret: {secretName: {{ .clientCASecretName }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- end }}
- name: scratch
  emptyDir: {sizeLimit: {{ .Values.scratch.sizeLimit }}}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.shm.sizeLimit }}}
{{- if eq .Values.redis.mode "sidecar" }}
- name: redis
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
