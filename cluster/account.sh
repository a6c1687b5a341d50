#!/usr/bin/env bash
# Prepare an AWS account: a private bucket, two roles and a security group; print the values for `metadata` in
# cluster/aws.yaml. Use the keys of `aws configure`:
#
#   AWS_DEFAULT_REGION=us-west-2 bash cluster/account.sh [FILE]            FILE is cluster/aws.yaml beside this script
#   AWS_DEFAULT_REGION=us-west-2 bash cluster/account.sh --delete [FILE]   delete what it made in this region
#
# It can be run again at any time: what exists is kept, rights are written anew. Run it again after a change of
# machine types, profiles or cluster_name in FILE. The head may start machines of FILE's types and terminate those of
# its cluster; the workers may only read and write the bucket. What it makes has the tag made-by=interplay; anything
# else of the same name is refused.
#
#   INTERPLAY_SSH_FROM=CIDR   who reaches port 22, instead of this machine's public address; IPv4 or IPv6
#   INTERPLAY_VPC=vpc-...     a VPC with public subnets, instead of the default one
#   INTERPLAY_BUCKET=NAME     instead of interplay-ACCOUNT-REGION
#
# Exit status: 2 if you must change something first, 1 if AWS refused a step.
set -euo pipefail
fail() {
  echo "account.sh: $2" >&2
  exit "$1"
}
export AWS_DEFAULT_REGION=${AWS_DEFAULT_REGION:?is the region of the cluster, such as us-west-2}
export AWS_PAGER=
region=$AWS_DEFAULT_REGION
is_delete=
if [ "${1:-}" = --delete ]; then
  is_delete=1
  shift
fi
file=${1:-$(dirname "$0")/aws.yaml}
[ -r "$file" ] || fail 2 "there is no cluster file $file; give its path as the argument."

# Read FILE by awk and sed: this runs before any Python environment of this repository, with the bash 3.2 and awk of a
# Mac too, and the Python of the AWS command line is closed. It takes one `key: value` per line, as the shipped file has
# them; tests/cluster/test_account_script.py compares it with a YAML parser.
setting() {
  sed -nE "s/ +(#.*)?\$//; s/^ *$1: *(&[A-Za-z0-9_]+ +)?//p" "$file" | sed -E 's/^"(.*)"$/\1/' | head -1
}
# One line per node type: name, instance type, maximum, market.
node_types() {
  awk '
    function resolved(word) { sub(/^\*/, "", word); return (word in anchors) ? anchors[word] : word }
    function print_last() { if (name != "") print name, resolved(type), (name == head ? 1 : resolved(most)), market }
    /^ *#/ { next }
    { sub(/ #.*/, ""); rest = $0 }
    { while (match(rest, /&[A-Za-z0-9_]+ +[^][{}, ]+/)) {
        split(substr(rest, RSTART + 1, RLENGTH - 1), pair, / +/)
        anchors[pair[1]] = pair[2]
        rest = substr(rest, RSTART + RLENGTH)
      } }
    $1 == "head_node_type:" { head = $2 }
    $1 == "max_workers:" && /^m/ { total = $2 }
    /^[^ ]/ { inside = ($1 == "available_node_types:") }
    # A type in another form, such as `name: {...}`, keeps its colon and is refused below.
    inside && /^  [^ ]/ {
      print_last(); name = $1; type = "?"; most = total; market = "on-demand"
      if ($0 ~ /^  [A-Za-z0-9_-]+: *$/) sub(/:$/, "", name)
    }
    inside && $1 == "InstanceType:" { type = $2 }
    inside && $1 == "max_workers:" { most = $2 }
    inside && match($0, /MarketType: *[a-z-]+/) {
      market = substr($0, RSTART, RLENGTH); sub(/MarketType: */, "", market)
    }
    END { print_last() }' "$file"
}
cluster=$(setting cluster_name)
head_profile=$(setting head_profile)
worker_profile=$(setting worker_profile)
head_type=$(setting head_node_type)
machines=$(node_types)
for name in "$cluster" "$head_profile" "$worker_profile" "$head_type"; do
  [[ $name =~ ^[A-Za-z0-9_.-]+$ ]] || fail 2 "$file lacks cluster_name, head_node_type, metadata.head_profile or \
metadata.worker_profile as a plain word; write them as cluster/aws.yaml does."
done
if [ -z "$machines" ] || grep -qvE '^[A-Za-z0-9_-]+ [a-z0-9-]+\.[a-z0-9-]+ [0-9]+ [a-z-]+$' <<<"$machines"; then
  fail 2 "cannot read the machines of $file (${machines//$'\n'/; }); write InstanceType and max_workers of each type on \
lines of their own, as cluster/aws.yaml does."
fi

# Run aws, and set `answer` to what it printed, `None` for nothing. An error with one of the codes in $1, separated by
# `|`, says that a thing exists or does not, which is an answer too; any other ends the script. So never within $(...).
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
ask() {
  local codes=$1
  shift
  if answer=$(aws "$@" --output text 2>"$errors"); then
    answer=${answer:-None}
  elif [ -n "$codes" ] && grep -qE "\(($codes)\)" "$errors"; then
    answer=None
  else
    fail 1 "aws $1 $2: $(grep . "$errors")
Nothing needs to be undone: correct this, and run the same command again."
  fi
}
tag=Key=made-by,Value=interplay
of_tag="[?Key=='made-by'].Value | [0]"
# Fail unless the last answer is this script's tag.
refuse_foreign() {
  [ "$answer" = interplay ] ||
    fail 2 "$1 exists, and this script did not make it (it lacks the tag made-by=interplay). $2"
}

# Ask for the address first: nothing is made if it is not known.
from=${INTERPLAY_SSH_FROM:-}
ipv4='^([0-9]{1,3}\.){3}[0-9]{1,3}'
if [ -z "$is_delete" ] && [ -z "$from" ]; then
  from=$(curl -4 -fsS --max-time 20 https://checkip.amazonaws.com || true)
  [[ $from =~ $ipv4$ ]] || fail 2 "https://checkip.amazonaws.com did not give this machine's IPv4 address, which may use \
SSH (it gave '${from:0:60}'); give it by INTERPLAY_SSH_FROM, such as 192.0.2.7/32 or 2001:db8::/64."
  from=$from/32
fi
ranges="$ipv4/([1-9]|[12][0-9]|3[0-2])\$|^[0-9a-fA-F:]*:[0-9a-fA-F:]*/[1-9][0-9]*\$"
[ -n "$is_delete" ] || [[ $from =~ $ranges ]] || fail 2 "INTERPLAY_SSH_FROM is '$from'; give a range that is not the \
whole internet, such as 192.0.2.7/32 or 2001:db8::/64."

ask '' sts get-caller-identity --query Account
account=$answer
bucket=${INTERPLAY_BUCKET:-interplay-$account-$region}
# Set `answer` to the first key in the bucket, or None.
ask_first_key() {
  ask '' s3api list-objects-v2 --bucket "$bucket" --no-paginate --max-keys 1 --query 'Contents[0].Key'
}
# Set `state` of the bucket: absent, made (by this script), empty or foreign.
ask_state() {
  # An account's number is no secret, so somebody else may have taken the name: only a bucket of this account counts.
  if ! aws s3api head-bucket --bucket "$bucket" --expected-bucket-owner "$account" >/dev/null 2>"$errors"; then
    state=absent
    if grep -qF '(404)' "$errors"; then return; fi
    state=foreign
    [ -n "$is_delete" ] || fail 2 "the bucket $bucket exists, and is another account's, another region's, or closed to \
your keys ($(grep . "$errors")); give another name by INTERPLAY_BUCKET=NAME."
    return
  fi
  ask NoSuchTagSet s3api get-bucket-tagging --bucket "$bucket" --query "TagSet$of_tag"
  state=made
  if [ "$answer" = interplay ]; then return; fi
  # An empty one may be that of a run which ended before the tag was set.
  ask_first_key
  state=foreign
  if [ "$answer" = None ]; then state=empty; fi
}

if [ -n "$is_delete" ]; then
  ask '' ec2 describe-security-groups --query 'SecurityGroups[0].GroupId' \
    --filters Name=group-name,Values=interplay Name=tag:made-by,Values=interplay
  group=$answer
  # Also those that are being terminated: they hold the group.
  states=Name=instance-state-name,Values=pending,running,shutting-down,stopping,stopped
  filters=("Name=tag:ray-cluster-name,Values=$cluster")
  if [ "$group" != None ]; then filters=("${filters[@]}" "Name=instance.group-id,Values=$group"); fi
  for filter in "${filters[@]}"; do
    ask '' ec2 describe-instances --filters "$filter" $states --query 'Reservations[].Instances[].InstanceId'
    [ "$answer" = None ] || fail 2 "machines of the cluster exist (${answer//$'\t'/, }); run \`ray down $file\`, wait \
until they are terminated, and run this again. Nothing was deleted."
  done
  if [ "$group" != None ]; then ask InvalidGroup.NotFound ec2 delete-security-group --group-id "$group"; fi
  for role in "$head_profile" "$worker_profile"; do
    ask NoSuchEntity iam get-role --role-name "$role" --query "Role.Tags$of_tag"
    if [ "$answer" != interplay ]; then continue; fi
    ask '' iam list-role-policies --role-name "$role" --query 'PolicyNames[]'
    # Other regions have policies of their own on the same role.
    kept=
    for policy in ${answer/None/}; do
      case $policy in
        "bucket-$region" | "machines-$region-"*)
          ask NoSuchEntity iam delete-role-policy --role-name "$role" --policy-name "$policy" ;;
        *) kept="$kept $policy" ;;
      esac
    done
    if [ -n "$kept" ]; then
      echo "kept the role $role, for its policies$kept"
      continue
    fi
    ask NoSuchEntity iam get-instance-profile --instance-profile-name "$role" --query "InstanceProfile.Tags$of_tag"
    if [ "$answer" = interplay ]; then
      ask NoSuchEntity iam remove-role-from-instance-profile --instance-profile-name "$role" --role-name "$role"
      ask NoSuchEntity iam delete-instance-profile --instance-profile-name "$role"
    fi
    ask NoSuchEntity iam delete-role --role-name "$role"
  done
  ask_state
  if [ "$state" = made ]; then
    ask_first_key
    if [ "$answer" = None ]; then
      ask NoSuchBucket s3api delete-bucket --bucket "$bucket"
    else
      echo "kept the bucket $bucket, which is not empty:"
      aws s3 ls "s3://$bucket/" --recursive --summarize | tail -2
      echo "delete it and all results in it by: aws s3 rb --force s3://$bucket"
    fi
  elif [ "$state" != absent ]; then
    echo "kept the bucket $bucket, which this script did not make"
  fi
  echo "deleted what this script made in $region, but for what it kept"
  exit
fi

vpc=${INTERPLAY_VPC:-}
if [ -z "$vpc" ]; then
  ask '' ec2 describe-vpcs --filters Name=is-default,Values=true --query 'Vpcs[0].VpcId'
  vpc=$answer
fi
[ "$vpc" != None ] || fail 2 "the region $region has no default VPC; make one by \`aws ec2 create-default-vpc --region \
$region\`, or name a VPC with public subnets by INTERPLAY_VPC=vpc-..."

# A private bucket. S3 refuses the name of the region us-east-1, its default.
ask_state
if [ "$state" = foreign ]; then
  fail 2 "the bucket $bucket holds files, and this script did not make it; give another name by INTERPLAY_BUCKET=NAME."
elif [ "$state" = absent ] && [ "$region" = us-east-1 ]; then
  ask BucketAlreadyOwnedByYou s3api create-bucket --bucket "$bucket"
elif [ "$state" = absent ]; then
  ask BucketAlreadyOwnedByYou s3api create-bucket --bucket "$bucket" \
    --create-bucket-configuration "LocationConstraint=$region"
fi
if [ "$state" != made ]; then ask '' s3api put-bucket-tagging --bucket "$bucket" --tagging "TagSet=[{$tag}]"; fi
ask '' s3api put-public-access-block --bucket "$bucket" --public-access-block-configuration \
  BlockPublicAcls=true,IgnorePublicAcls=true,BlockPublicPolicy=true,RestrictPublicBuckets=true
# The parts of an upload that was killed are billed, and no listing of objects shows them: up to 18 GB per checkpoint.
ask '' s3api put-bucket-lifecycle-configuration --bucket "$bucket" --lifecycle-configuration '{"Rules": [
  {"ID": "killed-uploads", "Status": "Enabled", "Filter": {"Prefix": ""},
   "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}]}'
ask '' s3api put-bucket-policy --bucket "$bucket" --policy '{"Version": "2012-10-17", "Statement": [
  {"Sid": "TlsOnly", "Effect": "Deny", "Principal": "*", "Action": "s3:*",
   "Resource": ["arn:aws:s3:::'"$bucket"'", "arn:aws:s3:::'"$bucket"'/*"],
   "Condition": {"Bool": {"aws:SecureTransport": "false"}}}]}'

for role in "$head_profile" "$worker_profile"; do
  ask EntityAlreadyExists iam create-role --role-name "$role" --tags "$tag" --assume-role-policy-document \
    '{"Version": "2012-10-17", "Statement": [
      {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}'
  ask '' iam get-role --role-name "$role" --query "Role.Tags$of_tag"
  refuse_foreign "the role $role" "Delete it, or write another name into metadata of $file."
  ask '' iam put-role-policy --role-name "$role" --policy-name "bucket-$region" --policy-document \
    '{"Version": "2012-10-17", "Statement": [
      {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetBucketLocation"], "Resource": "arn:aws:s3:::'"$bucket"'"},
      {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
       "Resource": "arn:aws:s3:::'"$bucket"'/*"}]}'
  ask EntityAlreadyExists iam create-instance-profile --instance-profile-name "$role" --tags "$tag"
  ask '' iam get-instance-profile --instance-profile-name "$role" --query "InstanceProfile.Tags$of_tag"
  refuse_foreign "the instance profile $role" "Delete it, or write another name into metadata of $file."
  ask '' iam get-instance-profile --instance-profile-name "$role" --query 'InstanceProfile.Roles[0].RoleName'
  if [ "$answer" != "$role" ]; then
    ask '' iam add-role-to-instance-profile --instance-profile-name "$role" --role-name "$role"
  fi
done
# EC2 asks IAM about each resource of a RunInstances, and all must be allowed. Type, profile and the tag of the request
# are known for the instance only; a condition on them would refuse the image, the disk and the rest. The head starts
# workers, never a head.
types=$(awk -v head="$head_type" '$1 != head && !seen[$2]++ {printf "%s\"%s\"", comma, $2; comma = ", "}' <<<"$machines")
ask '' iam put-role-policy --role-name "$head_profile" --policy-name "machines-$region-$cluster" --policy-document \
  '{"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Action": "ec2:RunInstances", "Resource": "arn:aws:ec2:'"$region:$account"':instance/*",
     "Condition": {
       "StringEquals": {"ec2:InstanceType": ['"$types"'], "aws:RequestTag/ray-cluster-name": "'"$cluster"'"},
       "ArnEquals": {"ec2:InstanceProfile": "arn:aws:iam::'"$account:instance-profile/$worker_profile"'"}}},
    {"Effect": "Allow", "Action": "ec2:RunInstances", "NotResource": "arn:aws:ec2:*:*:instance/*"},
    {"Effect": "Allow", "Resource": "*",
     "Action": ["ec2:DescribeInstances", "ec2:DescribeInstanceTypes", "ec2:DescribeInstanceStatus"]},
    {"Effect": "Allow", "Resource": "*", "Action": "ec2:CreateTags",
     "Condition": {"StringEquals": {"ec2:CreateAction": "RunInstances"}}},
    {"Effect": "Allow", "Resource": "arn:aws:ec2:'"$region:$account"':instance/*",
     "Action": ["ec2:TerminateInstances", "ec2:CreateTags"],
     "Condition": {"StringEquals": {"ec2:ResourceTag/ray-cluster-name": "'"$cluster"'"}}},
    {"Effect": "Allow", "Action": "iam:PassRole", "Resource": "arn:aws:iam::'"$account:role/$worker_profile"'"}]}'
# The first spot machine of an account needs this role, and the head may not make it.
ask 'InvalidInput|EntityAlreadyExists' iam create-service-linked-role --aws-service-name spot.amazonaws.com

# The machines can reach one another. From outside there is only SSH, from your address.
group_filters=("Name=group-name,Values=interplay" "Name=vpc-id,Values=$vpc")
ask '' ec2 describe-security-groups --filters "${group_filters[@]}" --query 'SecurityGroups[0].GroupId'
if [ "$answer" = None ]; then
  ask '' ec2 create-security-group --group-name interplay --vpc-id "$vpc" --query GroupId \
    --description "Interplay: SSH from one address" --tag-specifications "ResourceType=security-group,Tags=[{$tag}]"
fi
group=$answer
ask '' ec2 describe-security-groups --filters "${group_filters[@]}" --query "SecurityGroups[0].Tags$of_tag"
refuse_foreign "the security group interplay ($group) of $vpc" "Delete or rename it."
case $from in
  *:*) source="Ipv6Ranges=[{CidrIpv6=$from}]" ;;
  *) source="IpRanges=[{CidrIp=$from}]" ;;
esac
for rule in "IpProtocol=-1,UserIdGroupPairs=[{GroupId=$group}]" "IpProtocol=tcp,FromPort=22,ToPort=22,$source"; do
  ask InvalidPermission.Duplicate ec2 authorize-security-group-ingress --group-id "$group" --ip-permissions "$rule"
done
# shellcheck disable=SC2016 # JMESPath writes numbers in backticks
ask '' ec2 describe-security-groups --filters "${group_filters[@]}" --query \
  'SecurityGroups[0].IpPermissions[?FromPort==`22`].[IpRanges[].CidrIp, Ipv6Ranges[].CidrIpv6][][]'
for old in $answer; do
  case $old in
    "$from" | None) continue ;;
    *:*) source="Ipv6Ranges=[{CidrIpv6=$old}]" ;;
    *) source="IpRanges=[{CidrIp=$old}]" ;;
  esac
  echo "$old may still use SSH, beside $from. To remove it: aws ec2 revoke-security-group-ingress --region $region" \
    "--group-id $group --ip-permissions 'IpProtocol=tcp,FromPort=22,ToPort=22,$source'"
done

# What this region offers and this account may start. Nothing else needs these rights: an error is shown, and no more.
look() {
  problem=
  answer=$(aws "$@" --output text 2>"$errors") || problem=$(grep -oE '\([A-Za-z.]+\)' "$errors" || echo "(no answer)")
}
all_types=$(awk '!seen[$2]++ {printf "%s%s", comma, $2; comma = ","}' <<<"$machines")
look ec2 describe-instance-types --filters "Name=instance-type,Values=$all_types" \
  --query 'InstanceTypes[].[InstanceType, VCpuInfo.DefaultVCpus]'
cores=$answer
look ec2 describe-instance-type-offerings --location-type availability-zone \
  --filters "Name=instance-type,Values=$all_types" --query 'InstanceTypeOfferings[].[InstanceType, Location]'
offers=$answer
no_offers=$problem
echo "pools of $file in $region; the ones with the same quota share it:"
while read -r pool type most market; do
  case $market:$type in
    on-demand:p[0-9]*) code=L-417A185B ;;
    on-demand:g[0-9]* | on-demand:gr[0-9]* | on-demand:vt[0-9]*) code=L-DB2E81BA ;;
    on-demand:[acdhimrtz][0-9]*) code=L-1216C47A ;;
    spot:p[2-4]*) code=L-7212CCBC ;;
    spot:g[0-9]* | spot:gr[0-9]* | spot:vt[0-9]*) code=L-3819A6DF ;;
    spot:[acdhimrtz][0-9]*) code=L-34B43A08 ;;
    *) code= ;;
  esac
  zones=$(awk -v type="$type" '$1 == type {printf "%s%s", comma, $2; comma = ","}' <<<"$offers")
  if [ -n "$no_offers" ]; then zones="unknown $no_offers"; fi
  need=$(awk -v type="$type" -v most="$most" '$1 == type {print $2 * most}' <<<"$cores")
  if [ "$market" = capacity-block ]; then
    verdict="bought as a Capacity Block"
  elif [ -z "$code" ]; then
    verdict="its quota is under Service Quotas, Amazon EC2"
  else
    look service-quotas get-service-quota --service-code ec2 --quota-code "$code" --query Quota.Value
    verdict="quota $code: ${answer%.*}"
    if [ -n "$problem" ]; then
      verdict="quota $code: unknown $problem"
    elif [ -n "$need" ] && [ "${answer%.*}" -lt "$need" ]; then
      verdict="$verdict, TOO FEW: request more"
    fi
  fi
  zones=${zones:-NONE: choose another type or region}
  echo "  $pool: $most x $type, $market: zones $zones; needs ${need:-?} virtual CPUs; $verdict"
done <<<"$machines"
[ "$region" = "$(setting region)" ] || echo "$file names another region: write zones of $region into it too"

# Ubuntu 24.04 with NVIDIA's driver.
ask '' ssm get-parameter --query Parameter.Value --name \
  /aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id
echo "region: $region  image: $answer  bucket: $bucket  security_group: $group"
