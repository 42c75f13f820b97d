_shivad() {
  local flags="--config --tcp --rest --grpc --frigate --containers --containers-v2 --state --admin --health
    --tls-cert --tls-key --tls-client-ca --tls-client-auth --profiling --traces --metrics-triton
    --log-level --log-format --check --doctor --version --help --models --python --replicas --device --batch
    --as --trust"
  if [[ $2 == -* ]]; then COMPREPLY=($(compgen -W "$flags" -- "$2")); fi
}
complete -o default -F _shivad shivad
