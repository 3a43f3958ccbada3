// Package provision brings Kubernetes clusters up and takes them down, over
// hosts: containerd, runc, CNI plugins and kubelet from a bundle, `kubeadm init`
// and `join`, kube-router as CNI, CoreDNS answering on every node.
//
// Every phase looks first and acts only on what is missing, so Up may be run
// again at any time: after a kill it completes, on a finished cluster it
// changes nothing and says so. kubeadm makes the PKI and the static pods;
// nothing here does.
package provision
