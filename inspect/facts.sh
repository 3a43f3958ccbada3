# Reads what an upgrade wants to know of a machine. It changes nothing.
# Each line of output is: name, exit code, base64 of the output.
# $1 is put before every path, so that tests can bring a tree of their own.
LC_ALL=C; export LC_ALL
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin; export PATH
R=$1

emit() {
	_name=$1
	shift
	_out=$("$@" 2>&1)
	_rc=$?
	printf '%s %s ' "$_name" "$_rc"
	printf '%s' "$_out" | base64 | tr -d '\n'
	printf '\n'
}
# A disk that hangs must not take everything else with it.
limited() {
	if command -v timeout >/dev/null 2>&1; then timeout 15 "$@"; else "$@"; fi
}
# Only certificates leave the machine: a file with a private key beside them gives its certificates.
certs_of() { sed -n '/-----BEGIN CERTIFICATE-----/,/-----END CERTIFICATE-----/p' "$1"; }
client_cert_of() { sed -n 's/^ *client-certificate-data: *//p' "$1"; }

# In a function, so that a script cut short does nothing, and no program reads the rest of it from stdin.
main() {
	emit clock-start date +%s.%N
	emit cgroup stat -fc %T "$R/sys/fs/cgroup"
	emit swaps cat "$R/proc/swaps"
	emit kubelet-version limited kubelet --version
	emit kubeadm-version limited kubeadm version -o short
	emit containerd-version limited containerd --version
	emit runc-version limited runc --version
	emit kubelet-active limited systemctl is-active kubelet
	emit kubelet-unit limited systemctl cat kubelet
	_pid=$(limited systemctl show -p MainPID --value kubelet 2>/dev/null)
	if [ -n "$_pid" ] && [ "$_pid" != 0 ] && [ -r "$R/proc/$_pid/cmdline" ]; then
		emit kubelet-cmdline tr '\0' '\n' <"$R/proc/$_pid/cmdline"
	fi
	emit kubelet-config cat "$R/var/lib/kubelet/config.yaml"
	for _f in /var/lib/kubelet/kubeadm-flags.env /etc/default/kubelet /etc/sysconfig/kubelet; do
		[ -e "$R$_f" ] && emit "env:$_f" cat "$R$_f"
	done
	for _d in / /var/lib/kubelet /var/lib/containerd /var/lib/etcd /etc/kubernetes; do
		[ -e "$R$_d" ] && emit "df:$_d" limited df -Pk "$R$_d"
	done
	[ -d "$R/var/lib/etcd" ] && emit du:/var/lib/etcd limited du -sk "$R/var/lib/etcd"
	for _f in "$R"/etc/kubernetes/pki/*.crt "$R"/etc/kubernetes/pki/etcd/*.crt "$R"/var/lib/kubelet/pki/kubelet-client-current.pem "$R"/var/lib/kubelet/pki/kubelet-server-current.pem "$R"/var/lib/kubelet/pki/kubelet.crt; do
		[ -e "$_f" ] && emit "cert:${_f#"$R"}" certs_of "$_f"
	done
	for _f in "$R"/etc/kubernetes/*.conf; do
		[ -e "$_f" ] && emit "kubeconfig:${_f#"$R"}" client_cert_of "$_f"
	done
	for _f in "$R"/etc/kubernetes/manifests/*.yaml "$R"/etc/kubernetes/manifests/*.yml; do
		[ -e "$_f" ] && emit "manifest:${_f#"$R"}" cat "$_f"
	done
	for _f in "$R"/etc/kubernetes/tmp/kubeadm-*; do
		[ -e "$_f" ] && emit "residue:${_f#"$R"}" limited du -sk "$_f"
	done
	if command -v dpkg-query >/dev/null 2>&1; then
		emit dpkg limited dpkg-query -W -f '${db:Status-Want} ${db:Status-Status} ${Package}\n' kubelet kubeadm kubectl containerd containerd.io cri-o runc cri-tools kubernetes-cni
	fi
	if command -v rpm >/dev/null 2>&1; then
		emit rpm limited rpm -q --qf '%{NAME}\n' kubelet kubeadm kubectl containerd.io containerd cri-o runc cri-tools kubernetes-cni
		for _f in /etc/dnf/plugins/versionlock.list /etc/yum/pluginconf.d/versionlock.list /etc/yum.repos.d/kubernetes.repo; do
			[ -e "$R$_f" ] && emit "rpmlock:$_f" cat "$R$_f"
		done
	fi
	emit clock-end date +%s.%N
}
main </dev/null
