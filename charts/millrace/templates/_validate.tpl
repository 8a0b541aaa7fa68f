{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* What a schema cannot say: each message names the values and the way out. */}}
{{- define "millrace.validate" -}}
{{- include "millrace.validateModel" . -}}
{{- include "millrace.validateShutdown" . -}}
{{- include "millrace.validateConfig" . -}}
{{- include "millrace.validateRedis" . -}}
{{- include "millrace.validateGpu" . -}}
{{- include "millrace.validateScaling" . -}}
{{- include "millrace.validateGateway" . -}}
{{- end -}}

{{- define "millrace.validateModel" -}}
{{- with .Values.model -}}
{{- if and (eq .source "pvc") (not .pvc.claimName) -}}
{{- fail "model.source is pvc: name the claim that holds the model in model.pvc.claimName, or choose image or init" -}}
{{- end -}}
{{- if and (eq .source "image") (not .image.reference) -}}
{{- fail "model.source is image: name the OCI image that holds the model in model.image.reference" -}}
{{- end -}}
{{- if and (eq .source "init") (not .init.command) (not (and .init.url .init.sha256)) -}}
{{- fail "model.source is init: give model.init.url and model.init.sha256, or a model.init.command of your own" -}}
{{- end -}}
{{- if and (eq .source "init") .init.command .init.url -}}
{{- fail "model.init.url cannot act beside model.init.command: leave out the one or the other" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "millrace.validateShutdown" -}}
{{- $preStop := include "millrace.preStopSeconds" . | int -}}
{{- $drain := include "millrace.drainSeconds" . | int -}}
{{- $grace := int .Values.terminationGracePeriodSeconds -}}
{{- if le $grace (add $preStop $drain | int) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d: it must be more than %d, the %d s before the stop (shutdown.preStopSeconds) and the %d s of the drain together, or streams are cut off" $grace (add $preStop $drain) $preStop $drain) -}}
{{- end -}}
{{- end -}}

{{- define "millrace.validateConfig" -}}
{{- if and .Values.configSecret.name .Values.config -}}
{{- fail "config cannot act beside configSecret, which holds the whole file: leave out the one or the other" -}}
{{- end -}}
{{- if and .Values.tenantsSecret.name .Values.config.tenants -}}
{{- fail "config.tenants cannot act beside tenantsSecret: leave out the one or the other" -}}
{{- end -}}
{{- $caching := dig "enable_prefix_caching" true .Values.config | toString -}}
{{- if and .Values.cacheSaltSecret.name (eq $caching "false") -}}
{{- fail "cacheSaltSecret cannot act: config.enable_prefix_caching is false" -}}
{{- end -}}
{{- end -}}

{{- define "millrace.validateRedis" -}}
{{- $redis := .Values.redis -}}
{{- $several := or (gt (int .Values.replicaCount) 1) (ne .Values.autoscaling.mode "none") -}}
{{- if and (eq $redis.mode "sidecar") $several -}}
{{- fail "redis.mode is sidecar, which replicas do not share: with more than one of them set it to external, or to none where there are no limits of tenants" -}}
{{- end -}}
{{- if and (eq $redis.mode "external") (not (or $redis.external.host $redis.external.urlSecret.name)) -}}
{{- fail "redis.mode is external: give redis.external.host, or a Secret with the URL in redis.external.urlSecret" -}}
{{- end -}}
{{- if and $redis.external.host $redis.external.urlSecret.name -}}
{{- fail "redis.external.host cannot act beside redis.external.urlSecret: leave out the one or the other" -}}
{{- end -}}
{{- if and (eq $redis.mode "none") (hasKey .Values.config "redis") -}}
{{- fail "config.redis cannot act: redis.mode is none" -}}
{{- end -}}
{{- end -}}

{{- define "millrace.validateGpu" -}}
{{- $backend := default "auto" .Values.config.backend -}}
{{- $devices := int (default 1 .Values.config.tensor_parallel_size) -}}
{{- if and .Values.gpu.enabled (eq $backend "cpu") -}}
{{- fail "gpu.enabled cannot act: config.backend is cpu" -}}
{{- end -}}
{{- if and (not .Values.gpu.enabled) (eq $backend "cuda") -}}
{{- fail "config.backend is cuda: set gpu.enabled too" -}}
{{- end -}}
{{- if and .Values.gpu.enabled (ne (int .Values.gpu.count) $devices) -}}
{{- fail (printf "gpu.count is %d: it must be the number of GPUs that share the model, config.tensor_parallel_size, %d" (int .Values.gpu.count) $devices) -}}
{{- end -}}
{{- end -}}

{{- define "millrace.validateScaling" -}}
{{- with .Values.autoscaling -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "autoscaling.minReplicas is %d: it must not be more than maxReplicas, %d" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- if and (eq .mode "keda") (not .keda.serverAddress) -}}
{{- fail "autoscaling.mode is keda: give the address of Prometheus in autoscaling.keda.serverAddress" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "millrace.validateGateway" -}}
{{- $pool := .Values.gateway.inferencePool -}}
{{- $route := .Values.gateway.grpcRoute -}}
{{- if and $pool.enabled (not $pool.endpointPicker.name) -}}
{{- fail "gateway.inferencePool is enabled: name the Service of the endpoint picker in gateway.inferencePool.endpointPicker.name" -}}
{{- end -}}
{{- if and $pool.enabled (eq (dig "metrics" "vllm_names" true .Values.config | toString) "false") -}}
{{- fail "gateway.inferencePool needs the vllm: metrics, which its endpoint picker reads: leave out config.metrics.vllm_names" -}}
{{- end -}}
{{- if and $route.enabled (not $route.parentRefs) -}}
{{- fail "gateway.grpcRoute is enabled: name the gateway in gateway.grpcRoute.parentRefs" -}}
{{- end -}}
{{- if and $route.enabled (eq $route.backend "inferencePool") (not $pool.enabled) -}}
{{- fail "gateway.grpcRoute.backend is inferencePool: set gateway.inferencePool.enabled too" -}}
{{- end -}}
{{- end -}}
