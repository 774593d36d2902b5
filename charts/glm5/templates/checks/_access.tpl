{{- define "glm5.checks.api" -}}
{{- $k := .Values.api.key -}}
{{- $given := 0 -}}
{{- range list (not (empty $k.existingSecret)) (not (empty $k.value)) $k.disabled }}{{ if . }}{{ $given = add1 $given }}{{ end }}{{ end -}}
{{- if ne (int $given) 1 }}
- problem: "api.key: {{ $given }} of existingSecret, value and disabled are set; expected exactly one. Create a Secret with `kubectl create secret generic glm5-api-key --from-literal=api-key=$(openssl rand -hex 24)`."
  paste: "api:\n  key:\n    existingSecret: glm5-api-key\n    value: \"\"\n    disabled: false"
{{- end }}
{{- end -}}

{{- define "glm5.checks.access" -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}
- problem: "ingress.hosts is empty; expected the host names the API answers to."
  paste: "ingress:\n  hosts: [glm5.example.com]"
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
- problem: "httpRoute.parentRefs is empty; expected the gateway it attaches to."
  paste: "httpRoute:\n  parentRefs: [{name: public, namespace: gateways}]"
{{- end }}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker) }}
- problem: "inferencePool.endpointPicker is empty; expected the Service of an endpoint picker."
  paste: "inferencePool:\n  endpointPicker: glm5-epp"
{{- end }}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled }}
- problem: "podMonitor and serviceMonitor are both enabled; expected one. With both, Prometheus gets every sample twice."
  paste: "serviceMonitor:\n  enabled: false"
{{- end }}
{{- if and (or .Values.podMonitor.enabled .Values.serviceMonitor.enabled) (not .Values.metrics.enabled) }}
- problem: "a monitor is enabled while metrics.enabled is false; expected true. Without it there is nothing to scrape."
  paste: "metrics:\n  enabled: true"
{{- end }}
{{- end -}}

{{/* The policy's default refuses requests from outside the namespace. The YAML to paste allows each way in, and the namespace as before. */}}
{{- define "glm5.checks.doors" -}}
{{- $doors := list -}}
{{- $namespaces := list -}}
{{- $comment := "" -}}
{{- if .Values.ingress.enabled -}}
{{- $doors = append $doors "ingress" -}}
{{- $namespaces = append $namespaces "ingress-nginx" -}}
{{- end -}}
{{- if or .Values.httpRoute.enabled .Values.inferencePool.enabled -}}
{{- $doors = append $doors (ternary "httpRoute" "inferencePool" .Values.httpRoute.enabled) -}}
{{- $comment = "# namespace of the gateway's pods, which may be its controller's\n" -}}
{{- /* a gateway without a namespace is in the route's own */ -}}
{{- range .Values.httpRoute.parentRefs | default (list (dict "namespace" "gateways")) -}}
{{- $namespaces = append $namespaces (.namespace | default $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- $peers := list (dict "podSelector" dict) -}}
{{- range uniq $namespaces -}}
{{- $peers = append $peers (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .))) -}}
{{- end -}}
{{- if ne .Values.service.type "ClusterIP" -}}
{{- $doors = append $doors (printf "service.type %s" .Values.service.type) -}}
{{- $peers = append $peers (dict "ipBlock" (dict "cidr" "10.0.0.0/8")) -}}
{{- end -}}
{{- if and $doors .Values.networkPolicy.enabled (not .Values.networkPolicy.apiFrom) }}
- problem: "networkPolicy.apiFrom is empty with {{ join " and " $doors }}, so only pods of this namespace reach the API; expected the peers that send requests. Name the namespace of the controller's or gateway's pods, or the addresses that a load balancer or node port sends from. Your list replaces the default, podSelector: {}."
  paste: {{ toYaml (dict "networkPolicy" (dict "apiFrom" $peers)) | print $comment | toJson }}
{{- end }}
{{- end -}}
