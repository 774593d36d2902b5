{{/*
A Job cannot be changed, so its name follows from its whole spec: whatever changes in it makes another Job, and nothing else does. One
that failed is not started again, so the token is in it too.
48 and not 50: the name is a label of its pods as well, which may have 63 characters.
*/}}
{{- define "glm5.stagingJobName" -}}
{{ include "glm5.stagingJobPrefix" . }}-{{ include "glm5.stagingJobSpec" . | sha256sum | trunc 8 }}
{{- end -}}

{{- define "glm5.stagingJobPrefix" -}}
{{ include "glm5.fullname" . | trunc 48 | trimAll "-" }}-stage
{{- end -}}

{{- define "glm5.stagingJobSpec" -}}
# staging continues where it stopped, so trying again is cheap
backoffLimit: 20
template:
  metadata:
    labels: {{- include "glm5.podLabels" (list . "staging") | nindent 6 }}
    annotations:
      # the settings it reads, whichever value they came from
      glm5/staging-sha256: {{ (include "glm5.config" . | fromYaml).staging | toYaml | sha256sum }}
      {{- if .Values.staging.credentials.token }}
      glm5/source-token-generation: {{ include "glm5.sourceTokenGeneration" . | quote }}
      {{- end }}
  spec:
    terminationGracePeriodSeconds: {{ include "glm5.stagingStopSeconds" . }}
    {{- with include "glm5.pullSecrets" . }}
    {{- . | nindent 4 }}
    {{- end }}
    serviceAccountName: {{ include "glm5.serviceAccount" . | quote }}
    automountServiceAccountToken: false
    enableServiceLinks: false
    restartPolicy: OnFailure
    securityContext: {{- include "glm5.podSecurity" . | nindent 6 }}
    {{- with .Values.nodeSelector }}
    nodeSelector: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.tolerations }}
    tolerations: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with include "glm5.affinity" . | fromYaml }}
    affinity: {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
      - {{ include "glm5.stage" . | nindent 8 | trim }}
    volumes:
      {{- include "glm5.commonVolumes" . | nindent 6 }}
      {{- with include "glm5.sourceVolumes" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with include "glm5.modelVolume" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
{{- end -}}
