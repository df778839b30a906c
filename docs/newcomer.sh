#!/usr/bin/env bash
# From nothing to a served answer in five commands, on a cluster with a GPU node and a volume that holds the model of
# manifests/samples/smollm2.yaml. Run it at the top of the repository; KUBECONFIG and PATH name the cluster and Helm.
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

helm install plimsoll charts/plimsoll --namespace plimsoll-system --create-namespace --wait

kubectl apply -f manifests/samples/smollm2.yaml

kubectl wait --for=condition=Ready inferenceserver/smollm2 --timeout=10m

kubectl port-forward service/smollm2 8080:80 >/dev/null &

curl --silent --fail --retry 20 --retry-connrefused --retry-delay 1 localhost:8080/completion \
  --json '{"prompt": "The capital of France is", "n_predict": 8, "temperature": 0}'
