{{- define "glm5.checks.cluster" -}}
{{- if and .Values.gpu.dra.enabled (not (include "glm5.hasDra" .)) }}
- problem: "gpu.dra.enabled on Kubernetes {{ .Capabilities.KubeVersion.Version }}; expected 1.34 or newer."
  paste: "gpu:\n  dra:\n    enabled: false"
{{- end }}
{{- if and (eq .Values.model.volume.type "claim") (not .Values.model.volume.keep) (not (include "glm5.hasClaimRetention" .)) }}
- problem: "model.volume.keep is false on Kubernetes {{ .Capabilities.KubeVersion.Version }}; expected 1.27 or newer, which can delete claims with the release. Keep the claim and delete it by hand."
  paste: "model:\n  volume:\n    keep: true"
{{- end }}
{{- $name := include "glm5.fullname" . -}}
{{- $there := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if and $there (eq .Values.model.volume.type "claim") }}
{{- range $there.spec.volumeClaimTemplates }}
{{- if not (include "glm5.sameSize" (list .spec.resources.requests.storage $.Values.model.volume.size)) }}
- problem: "model.volume.size is {{ $.Values.model.volume.size }} while the claims have {{ .spec.resources.requests.storage }}; expected the same size, because a StatefulSet cannot change it. Enlarge each claim with `kubectl -n {{ $.Release.Namespace }} patch pvc model-{{ $name }}-0 -p '{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"{{ $.Values.model.volume.size }}\"}}}}'`. Then run `kubectl -n {{ $.Release.Namespace }} delete statefulset {{ $name }} --cascade=orphan` and upgrade again. The pod goes on serving."
  paste: "model:\n  volume:\n    size: {{ .spec.resources.requests.storage }}"
{{- end }}
{{- end }}
{{- end }}
{{- range $path, $secret := dict "api.key.existingSecret" .Values.api.key.existingSecret "staging.credentials.existingSecret" .Values.staging.credentials.existingSecret "staging.proxySecret" .Values.staging.proxySecret }}
{{- if and $secret (not (has $secret (include "glm5.extraSecrets" $ | fromJsonArray))) }}
{{- $live := lookup "v1" "Secret" $.Release.Namespace $secret }}
{{- $isOurs := and (eq (dig "metadata" "annotations" "meta.helm.sh/release-name" "" $live) $.Release.Name) (eq (dig "metadata" "labels" "app.kubernetes.io/managed-by" "" $live) "Helm") }}
{{- if or $isOurs (has $secret (list (include "glm5.ownKeySecret" $) (include "glm5.ownSourceSecret" $))) }}
{{- $cure := dict }}
{{- include "glm5.put" (list $cure $path (printf "my-%s" $secret)) }}
{{- include "glm5.problem" (list (printf "%s is %s, a Secret that belongs to this release; expected a Secret of your own. Helm deletes the release's Secret when its value goes. Copy it first: kubectl -n %s create secret generic my-%s --from-literal=KEY=VALUE." $path $secret $.Release.Namespace $secret) $cure) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Names of the Secrets among extraObjects, as JSON. They belong to the release and stay. */}}
{{- define "glm5.extraSecrets" -}}
{{- $names := list -}}
{{- range .Values.extraObjects -}}
{{- $object := tpl (toYaml .) $ | fromYaml -}}
{{- if eq (toString $object.kind) "Secret" }}{{ $names = append $names $object.metadata.name }}{{ end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}
