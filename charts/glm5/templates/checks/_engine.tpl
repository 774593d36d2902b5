{{- define "glm5.checks.engine" -}}
{{- $e := .Values.engine -}}
{{- $expected := include "glm5.setting" (list . "health.expected_backend") -}}
{{- $attention := include "glm5.setting" (list . "engine.attention_backend") -}}
{{- $cacheGib := include "glm5.setting" (list . "engine.cpu_kv_cache_gib") | int -}}
{{- if and (eq .Values.profile "cpu") (ne (int $e.tensorParallelSize) 1) }}
- problem: "engine.tensorParallelSize is {{ $e.tensorParallelSize }} on profile cpu; expected 1."
  paste: "engine:\n  tensorParallelSize: 1"
{{- end }}
{{- if ne (mod (int $e.tensorParallelSize) (int $e.decodeContextParallelSize)) 0 }}
- problem: "engine.decodeContextParallelSize is {{ $e.decodeContextParallelSize }}; expected a divisor of tensorParallelSize, {{ $e.tensorParallelSize }}."
  paste: "engine:\n  decodeContextParallelSize: {{ $e.tensorParallelSize }}"
{{- end }}
{{- $own := ternary "TRITON_MLA_SPARSE" "TORCH_MLA_SPARSE" (eq .Values.profile "cuda") -}}
{{- if not (has $expected (list "auto" "none" $own)) }}
- problem: "settings.health.expected_backend is {{ $expected }}; expected auto, {{ $own }} or none. vLLM's own backends write no attestation, so the pod would never turn ready."
  paste: "settings:\n  engine:\n    attention_backend: {{ $expected }}\n  health:\n    expected_backend: none"
{{- else if and $attention (ne $attention $own) (ne $expected "none") }}
- problem: "settings.health.expected_backend is {{ $expected }} while settings.engine.attention_backend asks for {{ $attention }}, which writes no attestation; expected none. Otherwise the pod would never turn ready."
  paste: "settings:\n  health:\n    expected_backend: none"
{{- end }}
{{- if lt (include "glm5.shmMib" . | int) (include "glm5.shmLeastMib" . | int) }}
- problem: "engine.shmSize is {{ $e.shmSize }}; expected at least {{ div (include "glm5.shmLeastMib" .) 1024 }}Gi for tensorParallelSize {{ $e.tensorParallelSize }}, or empty."
  paste: "engine:\n  shmSize: {{ div (include "glm5.shmLeastMib" .) 1024 }}Gi"
{{- end }}
{{- if and (eq .Values.profile "cpu") (le (include "glm5.mib" $e.memory | int) (mul 1024 $cacheGib | int)) }}
- problem: "engine.memory is {{ $e.memory }}; expected more than settings.engine.cpu_kv_cache_gib, {{ $cacheGib }}Gi, because the cache is part of that memory."
  paste: "engine:\n  memory: {{ add $cacheGib 6 }}Gi"
{{- end }}
{{- end -}}

{{- define "glm5.checks.times" -}}
{{- if lt (include "glm5.startupSeconds" . | int64) (include "glm5.startupLeastSeconds" . | int64) }}
- problem: "startup.budgetSeconds is {{ .Values.startup.budgetSeconds }}; expected at least {{ include "glm5.startupLeastSeconds" . }}. That is 1.5 times the time to read {{ .Values.model.sizeGB }} GB at {{ .Values.startup.storageGBps }} GB/s, plus {{ .Values.startup.compileSeconds }} s of compiling. A pod that needs longer is killed while it loads."
  paste: "startup:\n  budgetSeconds: {{ include "glm5.startupLeastSeconds" . }}"
{{- end }}
{{- end -}}
