#!/usr/bin/env bash
# Prepare an AWS account: a private bucket, two roles and a security group; print the values for `metadata` in
# cluster/aws.yaml. `AWS_DEFAULT_REGION=us-west-2 bash cluster/account.sh`, once, with the keys of `aws configure`.
#
# The head may start machines and terminate those of a Ray cluster; the workers may only read and write the bucket.
set -euo pipefail
export AWS_DEFAULT_REGION=${AWS_DEFAULT_REGION:?is the region of the cluster, such as us-west-2}
bucket=interplay-$RANDOM$RANDOM$RANDOM
account=$(aws sts get-caller-identity --query Account --output text)

# A private bucket. S3 refuses the name of the region us-east-1, its default.
if [ "$AWS_DEFAULT_REGION" = us-east-1 ]; then
  aws s3api create-bucket --bucket "$bucket" >/dev/null
else
  aws s3api create-bucket --bucket "$bucket" \
    --create-bucket-configuration "LocationConstraint=$AWS_DEFAULT_REGION" >/dev/null
fi
aws s3api put-public-access-block --bucket "$bucket" --public-access-block-configuration \
  BlockPublicAcls=true,IgnorePublicAcls=true,BlockPublicPolicy=true,RestrictPublicBuckets=true

for role in interplay-head interplay-worker; do
  aws iam create-role --role-name $role --assume-role-policy-document '{"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}' >/dev/null
  aws iam put-role-policy --role-name $role --policy-name bucket --policy-document '{"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetBucketLocation"], "Resource": "arn:aws:s3:::'"$bucket"'"},
    {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
     "Resource": "arn:aws:s3:::'"$bucket"'/*"}]}'
  aws iam create-instance-profile --instance-profile-name $role >/dev/null
  aws iam add-role-to-instance-profile --instance-profile-name $role --role-name $role
done
aws iam put-role-policy --role-name interplay-head --policy-name machines --policy-document '{"Version": "2012-10-17",
  "Statement": [
    {"Effect": "Allow", "Resource": "*", "Action": ["ec2:RunInstances", "ec2:DescribeInstances",
      "ec2:DescribeInstanceTypes", "ec2:DescribeInstanceStatus"]},
    {"Effect": "Allow", "Resource": "*", "Action": "ec2:CreateTags",
      "Condition": {"StringEquals": {"ec2:CreateAction": "RunInstances"}}},
    {"Effect": "Allow", "Resource": "*", "Action": ["ec2:TerminateInstances", "ec2:CreateTags"],
      "Condition": {"StringLike": {"ec2:ResourceTag/ray-cluster-name": "*"}}},
    {"Effect": "Allow", "Action": "iam:PassRole", "Resource": "arn:aws:iam::'"$account"':role/interplay-worker"}]}'
# The first spot machine of an account needs this role, and the head may not make it. An existing one is no error.
aws iam create-service-linked-role --aws-service-name spot.amazonaws.com >/dev/null 2>&1 || true

# The machines can reach one another. From outside there is only SSH, from your address.
vpc=$(aws ec2 describe-vpcs --filters Name=is-default,Values=true --query 'Vpcs[0].VpcId' --output text)
group=$(aws ec2 create-security-group --group-name interplay --vpc-id "$vpc" \
  --description "Interplay: SSH from one address" --query GroupId --output text)
aws ec2 authorize-security-group-ingress --group-id "$group" --protocol=-1 --source-group "$group" >/dev/null
aws ec2 authorize-security-group-ingress --group-id "$group" --protocol tcp --port 22 \
  --cidr "$(curl -s https://checkip.amazonaws.com)/32" >/dev/null

# Ubuntu 24.04 with NVIDIA's driver.
image=$(aws ssm get-parameter --query Parameter.Value --output text --name \
  /aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id)
echo "region: $AWS_DEFAULT_REGION  image: $image  bucket: $bucket  security_group: $group"
