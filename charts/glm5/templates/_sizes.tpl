{{/*
What follows from other values: sizes in MiB, times in seconds. Each rule is written once, here.
*/}}

{{/* Mi or Gi quantity as a number of MiB. */}}
{{- define "glm5.mib" -}}
{{- if hasSuffix "Gi" . -}}{{ mul (trimSuffix "Gi" . | int64) 1024 }}{{- else -}}{{ trimSuffix "Mi" . | int64 }}{{- end -}}
{{- end -}}

{{/* Storage quantity as GB (10^9 bytes), a decimal number; knows every unit, since a server stores the amount in the one it likes. */}}
{{- define "glm5.gb" -}}
{{- $units := dict "m" 1e-12 "" 1e-9 "k" 1e-6 "M" 1e-3 "G" 1.0 "T" 1e3 "P" 1e6 "E" 1e9 "Ki" 1.024e-6 "Mi" 0.001048576 "Gi" 1.073741824 "Ti" 1099.511627776 "Pi" 1125899.906842624 "Ei" 1152921504.606846976 -}}
{{- $unit := regexFind "[A-Za-z]+$" . -}}
{{- mulf (trimSuffix $unit . | float64) (get $units $unit) -}}
{{- end -}}

{{/* "true" if two storage quantities are the same amount, to 1 kB, however they are written; else "". Takes (list one other). */}}
{{- define "glm5.sameSize" -}}
{{- if eq (round (include "glm5.gb" (index . 0) | float64) 6) (round (include "glm5.gb" (index . 1) | float64) 6) }}true{{ end -}}
{{- end -}}

{{/* GPUs one pod asks for. */}}
{{- define "glm5.gpus" -}}
{{ ternary (int .Values.engine.tensorParallelSize) 0 (eq .Values.profile "cuda") }}
{{- end -}}

{{/* Least number of replicas that there will be: the scaler's where one is on. */}}
{{- define "glm5.leastReplicas" -}}
{{- if .Values.keda.enabled -}}{{ int .Values.keda.minReplicas }}
{{- else if .Values.autoscaling.enabled -}}{{ int .Values.autoscaling.minReplicas }}
{{- else -}}{{ include "glm5.replicasOr1" . }}
{{- end -}}
{{- end -}}

{{/* The number of replicas; 1, the server's own default, where it is left to somebody else. */}}
{{- define "glm5.replicasOr1" -}}
{{ if kindIs "invalid" .Values.replicas }}1{{ else }}{{ int .Values.replicas }}{{ end }}
{{- end -}}

{{/*
Replicas to ask for. Under a scaler the number that there is: without the field the server would take 1, and pods in use would go. The
least is the scaler's to reach, which owns the field: a server-side apply of another number is refused. At 0 a scaler is off, so there
the least. Nothing where the cluster does not tell: whoever applies such a render again and again would undo the scaler.
Takes (list $ stateful-set-that-is-there).
*/}}
{{- define "glm5.replicas" -}}
{{- $v := (index . 0).Values -}}
{{- if not (or $v.autoscaling.enabled $v.keda.enabled) -}}{{ if not (kindIs "invalid" $v.replicas) }}{{ int $v.replicas }}{{ end }}
{{- else if index . 1 -}}{{ int (index . 1).spec.replicas | default (include "glm5.leastReplicas" (index . 0) | int) }}
{{- end -}}
{{- end -}}

{{/* Least /dev/shm: 1 GiB, and 2 GiB for each rank. */}}
{{- define "glm5.shmLeastMib" -}}
{{ mul 1024 (add 1 (mul 2 (int .Values.engine.tensorParallelSize))) }}
{{- end -}}

{{- define "glm5.shmMib" -}}
{{- if .Values.engine.shmSize -}}{{ include "glm5.mib" .Values.engine.shmSize }}{{- else -}}{{ include "glm5.shmLeastMib" . }}{{- end -}}
{{- end -}}

{{/* Memory of the engine container: its processes and its shared memory. */}}
{{- define "glm5.engineMemory" -}}
{{ add (include "glm5.mib" .Values.engine.memory) (include "glm5.shmMib" .) }}Mi
{{- end -}}

{{/* Seconds the engine needs at most from start to ready: reading the model half as fast again, and the compile allowance. */}}
{{- define "glm5.startupLeastSeconds" -}}
{{ ceil (addf (divf (mulf 1.5 .Values.model.sizeGB) .Values.startup.storageGBps) .Values.startup.compileSeconds) | int64 }}
{{- end -}}

{{- define "glm5.startupSeconds" -}}
{{- if kindIs "invalid" .Values.startup.budgetSeconds -}}{{ include "glm5.startupLeastSeconds" . }}{{- else -}}{{ int64 .Values.startup.budgetSeconds }}{{- end -}}
{{- end -}}

{{/* Memory the stager needs to keep the model in the page cache: the model and what it needs itself. */}}
{{- define "glm5.warmLeastMib" -}}
{{ mul 1024 (add 2 (ceil (divf .Values.model.sizeGB 1.073741824) | int64)) }}
{{- end -}}

{{/* Seconds staging is expected to take from nothing. */}}
{{- define "glm5.stagingSeconds" -}}
{{- if .Values.staging.enabled -}}{{ ceil (divf .Values.model.sizeGB .Values.staging.networkGBps) | int64 }}{{- else -}}0{{- end -}}
{{- end -}}

{{/* Seconds a stager that is told to stop may take to put on disk what came since the last time, half a minute ago at most. */}}
{{- define "glm5.stagingStopSeconds" -}}60{{- end -}}

{{/* Seconds from an installation until a replica answers, with staging at half the expected rate and a margin. */}}
{{- define "glm5.firstAnswerSeconds" -}}
{{ add (mul 2 (include "glm5.stagingSeconds" . | int64)) (include "glm5.startupSeconds" .) 300 }}
{{- end -}}

{{/* How stopping is spent: endpoints update, requests finish, the engine ends; a margin for the kubelet. */}}
{{- define "glm5.endpointGraceSeconds" -}}5{{- end -}}
{{- define "glm5.engineStopSeconds" -}}30{{- end -}}
{{- define "glm5.graceSeconds" -}}
{{ add (include "glm5.endpointGraceSeconds" .) (int64 .Values.drainSeconds) (include "glm5.engineStopSeconds" .) 15 }}
{{- end -}}

{{/* What the cluster can do, as "true" or "". */}}
{{- define "glm5.hasNativeSidecars" -}}{{ if semverCompare ">=1.29.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}{{- end -}}
{{- define "glm5.hasClaimRetention" -}}{{ if semverCompare ">=1.27.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}{{- end -}}
{{- define "glm5.hasDra" -}}{{ if semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}{{- end -}}
