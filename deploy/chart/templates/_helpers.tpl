{{- define "gpushare.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Providers add to the version that Kubernetes' own images have: v1.33.5-gke.1201000, v1.33.5+k3s1. */}}
{{- define "gpushare.kubeScheduler" -}}
{{ .Values.scheduler.kubeScheduler.repository }}:{{ .Values.scheduler.kubeScheduler.tag
  | default (regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version) }}
{{- end }}

{{- /* Not empty where agents may serve claims. */}}
{{- define "gpushare.dra" -}}
{{- if or .Values.agent.dra.enabled (eq .Values.agent.serve "dra") }}true{{ end }}
{{- end }}
