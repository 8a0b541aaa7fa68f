{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* What a schema cannot say: each message names the values and the way out. */}}
{{- define "millrace.validate" -}}
{{- include "millrace.validateModel" . -}}
{{- include "millrace.validateShutdown" . -}}
{{- include "millrace.validateConfig" . -}}
{{- include "millrace.validateTls" . -}}
{{- include "millrace.validateAdmin" . -}}
{{- include "millrace.validatePorts" . -}}
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

{{- define "millrace.validateTls" -}}
{{- $tls := .Values.tls -}}
{{- $config := dig "tls" dict .Values.config -}}
{{- if and (not $tls.secretName) (or (ne $tls.clientAuth "none") $tls.clientCASecretName) -}}
{{- fail "tls.clientAuth and tls.clientCASecretName cannot act without TLS: name the Secret of the server's certificate in tls.secretName" -}}
{{- end -}}
{{- if and $tls.clientCASecretName (eq $tls.clientAuth "none") -}}
{{- fail "tls.clientCASecretName cannot act: tls.clientAuth is none" -}}
{{- end -}}
{{- range list "certificate" "private_key" "client_ca" "client_auth" -}}
{{- if and $tls.secretName (hasKey $config .) -}}
{{- fail (printf "config.tls.%s cannot act beside tls.secretName: leave out the one or the other" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "millrace.encrypted" -}}
{{- if or .Values.tls.secretName (dig "tls" "certificate" "" .Values.config) -}}yes{{- end -}}
{{- end -}}

{{/* Whether callers are told from each other, as far as the values say. */}}
{{- define "millrace.validateAdmin" -}}
{{- $admin := dig "admin" dict .Values.config -}}
{{- $on := eq (dig "enable" false $admin | toString) "true" -}}
{{- $known := or .Values.tenantsSecret.name .Values.config.tenants (ne .Values.tls.clientAuth "none") -}}
{{- if and .Values.adminSecret.name (or (hasKey $admin "callers") (hasKey $admin "enable")) -}}
{{- fail "config.admin.enable and config.admin.callers cannot act beside adminSecret: leave out the one or the other" -}}
{{- end -}}
{{- if and $on $known (not $admin.callers) -}}
{{- fail "config.admin.enable wants administrators where there are tenants or client certificates: give adminSecret in its place, or config.admin.callers" -}}
{{- end -}}
{{- end -}}

{{- define "millrace.validatePorts" -}}
{{- $ports := list .Values.ports.grpc .Values.ports.metrics -}}
{{- if .Values.healthListener.enabled -}}
{{- $ports = append $ports .Values.ports.health -}}
{{- end -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail "ports: two of them are the same" -}}
{{- end -}}
{{- if and .Values.networkPolicy.healthFrom (not .Values.healthListener.enabled) -}}
{{- fail "networkPolicy.healthFrom cannot act: healthListener.enabled is false" -}}
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
{{- if and $pool.enabled (include "millrace.encrypted" .) -}}
{{- fail "gateway.inferencePool cannot act with TLS: gateways speak plaintext to the pods of a pool. Leave out tls.secretName, and let a mesh encrypt" -}}
{{- end -}}
{{- if and $route.backendTLS.hostname (not (and $route.enabled (include "millrace.encrypted" .))) -}}
{{- fail "gateway.grpcRoute.backendTLS cannot act without gateway.grpcRoute.enabled and tls.secretName" -}}
{{- end -}}
{{- if and $route.backendTLS.caConfigMapName (not $route.backendTLS.hostname) -}}
{{- fail "gateway.grpcRoute.backendTLS.caConfigMapName cannot act alone: give a name in the certificate in gateway.grpcRoute.backendTLS.hostname" -}}
{{- end -}}
{{- if and $route.enabled (include "millrace.encrypted" .) (not $route.backendTLS.hostname) -}}
{{- fail "gateway.grpcRoute is enabled and the server speaks TLS: give a name in its certificate in gateway.grpcRoute.backendTLS.hostname" -}}
{{- end -}}
{{- if and $route.enabled (eq .Values.tls.clientAuth "require") -}}
{{- fail "gateway.grpcRoute cannot act with tls.clientAuth require: a gateway shows no certificate by this chart. Set tls.clientAuth to optional, or let clients reach the Service" -}}
{{- end -}}
{{- end -}}
