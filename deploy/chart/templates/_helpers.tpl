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

{{- define "gpushare.kubeletRoot" -}}
{{ .Values.agent.kubeletRootDir | default .Values.agent.kubeletDir }}
{{- end }}

{{- /* Where the agent sees the kubelet's root directory. A driver tells the kubelet paths, which must be those of the node. */}}
{{- define "gpushare.kubeletRootInside" -}}
{{- if include "gpushare.dra" . }}{{ include "gpushare.kubeletRoot" . }}{{ else }}/var/lib/kubelet{{ end }}
{{- end }}
