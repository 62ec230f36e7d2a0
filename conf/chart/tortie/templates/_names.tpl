{{- define "tortie.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tortie.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: tortie
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "tortie.container" -}}
image: {{ include "tortie.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "tortie.nodename" -}}
- name: NODENAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

{{- define "tortie.bird" -}}
name: bird
{{ include "tortie.container" . }}
command: [tortie-bird]
env:
  {{- include "tortie.nodename" . | nindent 2 }}
securityContext:
  runAsUser: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    add: [NET_ADMIN, NET_BIND_SERVICE, NET_RAW]
resources:
  {{- toYaml .Values.bird.resources | nindent 2 }}
volumeMounts:
  - {name: run, mountPath: /run/tortie}
  - {name: config, mountPath: /etc/tortie, readOnly: true}
{{- end }}

{{- define "tortie.pool" -}}
cidr: {{ .cidr | quote }}
{{- if ne .cidr "none" }}
{{- if .blockSize }}
block_size: {{ .blockSize }}
{{- end }}
nat_outgoing: {{ .natOutgoing }}
node_selector: {{ .nodeSelector | quote }}
{{- if ne .vxlanMode "Never" }}
vxlan_mode: {{ .vxlanMode }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tortie.config" -}}
datastore_type: kubernetes
{{- with .Values.calicoAPIGroup }}
calico_api_group: {{ . }}
{{- end }}
k8s_api_root: {{ .Values.kubernetesAPI }}
{{- if ne .Values.kubernetesAPI "in-cluster" }}
k8s_token_file: /var/run/secrets/kubernetes.io/serviceaccount/token
k8s_ca_file: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
{{- end }}
cni_kubeconfig: /var/lib/tortie/cni-kubeconfig
ip: {{ .Values.agent.ip }}
ip6: {{ .Values.agent.ip6 }}
default_pools:
  ipv4:
    {{- include "tortie.pool" .Values.pools.ipv4 | nindent 4 }}
  ipv6:
    {{- include "tortie.pool" .Values.pools.ipv6 | nindent 4 }}
log_level: {{ .Values.agent.logLevel }}
metrics_port: {{ .Values.agent.port }}
{{- if .Values.metrics.tokenSecret }}
metrics_host: "::"
metrics_token_file: /etc/tortie-metrics/token
{{- end }}
{{- if .Values.agent.peerCertificates }}
peer_ca_file: /etc/tortie-peers/ca.pem
peer_cert_file: /etc/tortie-peers/node.pem
peer_key_file: /etc/tortie-peers/node.key
{{- end }}
bird: {mode: {{ .Values.bird.enabled | ternary "external" "off" | quote }}}
{{- end }}

{{- define "tortie.plugin" -}}
type: tortie
datastore_type: kubernetes
kubernetes: {kubeconfig: /var/lib/tortie/cni-kubeconfig}
policy: {type: k8s}
ipam: {type: tortie-ipam}
policy_setup_timeout_seconds: {{ .Values.linuxPolicySetupTimeoutSeconds }}
{{- end }}
