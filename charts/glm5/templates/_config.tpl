{{/* The model's folder as the engine opens it. */}}
{{- define "glm5.modelPath" -}}
/models/{{ .Values.model.folder }}/current
{{- end -}}

{{- define "glm5.cacheDir" -}}
{{ ternary "/models/.glm5-cache" "/var/cache/glm5" .Values.cache.persistent }}
{{- end -}}

{{/* Arguments for vLLM that have no setting of their own, as a JSON list. */}}
{{- define "glm5.extraArgs" -}}
{{- $args := list -}}
{{- with .Values.engine -}}
{{- if gt (int .decodeContextParallelSize) 1 -}}
{{- $args = concat $args (list "--decode-context-parallel-size" (toString .decodeContextParallelSize)) -}}
{{- end -}}
{{- if gt (int .mtpTokens) 0 -}}
{{- $args = concat $args (list "--speculative-config" (dict "method" "mtp" "num_speculative_tokens" (int .mtpTokens) | toJson)) -}}
{{- end -}}
{{- $args = concat $args .extraArgs -}}
{{- end -}}
{{- toJson $args -}}
{{- end -}}

{{/* The settings file of every container. */}}
{{- define "glm5.config" -}}
{{- $v := .Values -}}
{{- $model := dict "path" (include "glm5.modelPath" .) -}}
{{- if $v.model.tokenizerSource }}{{ $_ := set $model "hf_folder" (include "glm5.modelPath" .) }}{{ end -}}
{{- if $v.model.chatTemplate }}{{ $_ := set $model "chat_template" "/etc/glm5/chat_template.jinja" }}{{ end -}}
{{- $engine := dict
  "profile" $v.profile
  "served_model_name" $v.model.name
  "dtype" $v.engine.dtype
  "max_num_seqs" (int $v.engine.maxRequests)
  "tensor_parallel_size" (int $v.engine.tensorParallelSize)
  "kv_cache_dtype" $v.engine.kvCacheDtype
  "gpu_memory_utilization" $v.engine.gpuMemoryUtilization
  "cpu_kv_cache_gib" (int $v.engine.cpuKvCacheGiB)
  "stop_timeout_seconds" (include "glm5.engineStopSeconds" . | int)
-}}
{{- with include "glm5.extraArgs" . | fromJsonArray }}{{ $_ := set $engine "extra_args" . }}{{ end -}}
{{- with $v.engine.contextLength }}{{ $_ := set $engine "max_model_len" (int64 .) }}{{ end -}}
{{- with $v.engine.attentionBackend }}{{ $_ := set $engine "attention_backend" . }}{{ end -}}
{{- with $v.engine.toolCallParser }}{{ $_ := set $engine "tool_call_parser" . }}{{ end -}}
{{- with $v.engine.reasoningParser }}{{ $_ := set $engine "reasoning_parser" . }}{{ end -}}
{{- if not (kindIs "invalid" $v.engine.enforceEager) }}{{ $_ := set $engine "enforce_eager" $v.engine.enforceEager }}{{ end -}}
{{- $config := dict
  "run_dir" "/run/glm5"
  "cache_dir" (include "glm5.cacheDir" .)
  "model" $model
  "engine" $engine
  "api" (dict "extra_routes" $v.api.extraRoutes "max_body_bytes" (int64 $v.api.maxBodyBytes))
  "health" (dict
    "expected_backend" $v.engine.expectedBackend
    "stall_seconds" $v.health.stallSeconds
    "compile_cap_seconds" $v.health.compileCapSeconds
    "canary_idle_seconds" $v.health.canaryIdleSeconds)
  "drain" (dict
    "endpoint_grace_seconds" (include "glm5.endpointGraceSeconds" . | int)
    "limit_seconds" $v.drainSeconds)
-}}
{{- if $v.staging.enabled }}{{ $_ := set $config "staging" (include "glm5.stagingConfig" . | fromYaml) }}{{ end -}}
{{- toYaml (mergeOverwrite $config (deepCopy $v.settings)) -}}
{{- end -}}

{{- define "glm5.stagingConfig" -}}
{{- $s := .Values.staging -}}
{{- $token := dict "file" "/etc/glm5-source/token" -}}
{{- $staging := dict
  "source" .Values.model.source
  "target" (printf "/models/%s" .Values.model.folder)
  "architecture" .Values.model.architecture
  "refresh" $s.refresh
  "aside" $s.aside
  "keep" (int $s.keep)
  "connections" (int $s.connections)
  "rate_limit" (int64 $s.rateLimitBytes)
  "require_digest" $s.requireDigest
-}}
{{- with .Values.model.tokenizerSource }}{{ $_ := set $staging "tokenizer_source" . }}{{ end -}}
{{- with .Values.model.quantisation }}{{ $_ := set $staging "quantisation" . }}{{ end -}}
{{- $hub := dict "endpoint" $s.hubEndpoint -}}
{{- $http := dict -}}
{{- $s3 := dict "anonymous" $s.s3Anonymous -}}
{{- $oci := dict "plain_http" $s.ociPlainHttp -}}
{{- with $s.proxy }}{{ $_ := set $http "proxy" . }}{{ end -}}
{{- with $s.caConfigMap }}{{ $_ := set $http "ca_file" "/etc/glm5-ca/ca.crt" }}{{ end -}}
{{- with $s.s3Endpoint }}{{ $_ := set $s3 "endpoint" . }}{{ end -}}
{{- with $s.s3Region }}{{ $_ := set $s3 "region" . }}{{ end -}}
{{- if include "glm5.sourceSecret" . -}}
{{- if hasPrefix "hf://" .Values.model.source }}{{ $_ := set $hub "token" $token }}{{ end -}}
{{- if hasPrefix "http" .Values.model.source }}{{ $_ := set $http "token" $token }}{{ end -}}
{{- if hasPrefix "oci://" .Values.model.source }}{{ $_ := set $oci "auth_file" "/etc/glm5-source/.dockerconfigjson" }}{{ end -}}
{{- end -}}
{{- toYaml (merge $staging (dict "hub" $hub "http" $http "s3" $s3 "oci" $oci)) -}}
{{- end -}}
