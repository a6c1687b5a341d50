"""Actions of the owner of an AWS account, by boto3 on the laptop; see `Laptop.python`."""

import json
from typing import Any

import boto3


def open_account(bucket: str, profiles: list[str], region: str) -> dict[str, str]:
    """Make the resources that cluster/README.md lists before the first `ray up`; return their ids."""
    boto3.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": region})
    iam = boto3.client("iam")
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "ec2.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
    for profile in profiles:
        iam.create_role(RoleName=profile, AssumeRolePolicyDocument=json.dumps(trust))
        iam.create_instance_profile(InstanceProfileName=profile)
        iam.add_role_to_instance_profile(InstanceProfileName=profile, RoleName=profile)
    ec2 = boto3.client("ec2")
    (vpc,) = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    group = ec2.create_security_group(
        GroupName="interplay", Description="machines of one cluster", VpcId=vpc["VpcId"]
    )["GroupId"]
    ec2.authorize_security_group_ingress(
        GroupId=group,
        IpPermissions=[
            {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]},
            {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "172.31.240.1/32"}]},
        ],
    )
    ubuntu = [{"Name": "name", "Values": ["ubuntu*"]}, {"Name": "architecture", "Values": ["x86_64"]}]
    images = ec2.describe_images(Filters=ubuntu)["Images"]
    newest = max(images, key=lambda image: image["CreationDate"])
    return {"image": newest["ImageId"], "security_group": group}


def groups_open_to_all() -> list[str]:
    """The security groups that open SSH to everyone."""
    groups = boto3.client("ec2").describe_security_groups()["SecurityGroups"]
    return [
        group["GroupId"]
        for group in groups
        for permission in group["IpPermissions"]
        if any(found["CidrIp"] == "0.0.0.0/0" for found in permission.get("IpRanges", ()))
    ]


def instances() -> list[dict[str, Any]]:
    """The description of every running and terminated instance."""
    pages = boto3.client("ec2").describe_instances()["Reservations"]
    return [
        {
            "id": instance["InstanceId"],
            "state": instance["State"]["Name"],
            "type": instance["InstanceType"],
            "market": instance.get("InstanceLifecycle", "on-demand"),
            "profile": instance.get("IamInstanceProfile", {}).get("Arn", ""),
            "groups": [group["GroupId"] for group in instance["SecurityGroups"]],
            "tags": {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())},
        }
        for page in pages
        for instance in page["Instances"]
    ]


def terminate(*ids: str) -> None:
    """Terminate instances, as AWS does with spot machines."""
    boto3.client("ec2").terminate_instances(InstanceIds=list(ids))


def objects(bucket: str, prefix: str = "") -> list[str]:
    """The keys of a bucket."""
    pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [item["Key"] for page in pages for item in page.get("Contents", ())]


def objects_with(bucket: str, texts: list[str]) -> list[str]:
    """The keys of the objects that contain any of some texts."""
    client = boto3.client("s3")
    found = []
    for key in objects(bucket):
        content = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        found += [key for text in texts if text.encode() in content]
    return found
