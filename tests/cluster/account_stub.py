"""The AWS command line as cluster/account.sh uses it, on an account in a JSON file: `account_stub.py STATE ARGUMENTS`.

Starts within 50 ms, where the real one takes a second. It covers the errors that moto has not: missing rights, names of
other accounts, and quotas. tests/cluster/test_account.py runs the script against moto too.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jmespath

ACCOUNT = "123456789012"
NEW: dict[str, Any] = {
    "calls": [], "denied": [], "buckets": {}, "foreign": [], "objects": [], "roles": {}, "profiles": {},
    "groups": {}, "vpc": "vpc-1", "instances": [], "quotas": {}, "offers": [], "spot_role": False,
}  # fmt: skip


class RefusedError(Exception):
    """An error with AWS's code."""


def main(path: Path, arguments: list[str]) -> int:
    """Answer one call; return the exit status."""
    state = json.loads(path.read_text()) if path.exists() else NEW
    service, verb, *rest = arguments
    options: dict[str, Any] = {}
    key = ""
    for word in rest:
        if word.startswith("--"):
            key = word[2:]
            options[key] = []
        else:
            options.setdefault(key, []).append(word)
    options = {key: words[0] if len(words) == 1 else words for key, words in options.items()}
    state["calls"].append([service, verb, options])
    try:
        if verb in state["denied"]:
            raise RefusedError("AccessDenied")
        shown = text(jmespath.search(options.get("query", "@"), answer(state, service, verb, options)))
    except RefusedError as error:
        print(f"\nAn error occurred ({error}) when calling the operation: no", file=sys.stderr)
        return 254
    finally:
        path.write_text(json.dumps(state))
    print(shown)
    return 0


def text(value: Any) -> str:
    """Write a value as `--output text` does: lists of lists by line, other lists by tab."""
    if isinstance(value, list):
        return ("\n" if any(isinstance(item, list) for item in value) else "\t").join(map(text, value))
    return "" if value == {} else str(value)


def tags(words: str) -> list[dict[str, str]]:
    """The shorthand of one tag."""
    key, value = words.partition("Key=")[2].rstrip("}]").split(",Value=")
    return [{"Key": key, "Value": value}]


def entry(things: dict[str, Any], name: str, code: str = "NoSuchEntity") -> Any:
    """A thing by name."""
    if name not in things:
        raise RefusedError(code)
    return things[name]


def add(things: dict[str, Any], name: str, thing: Any, code: str = "EntityAlreadyExists") -> None:
    """A new thing."""
    if name in things:
        raise RefusedError(code)
    things[name] = thing


def answer(state: dict[str, Any], service: str, verb: str, options: dict[str, Any]) -> Any:
    """Change the account, and return the document that `--query` is applied to."""
    call = {"s3api": s3, "iam": iam, "ec2": ec2}
    if service in call:
        return call[service](state, verb, options)
    match service, verb:
        case "sts", "get-caller-identity":
            return {"Account": ACCOUNT}
        case "ssm", "get-parameter":
            return {"Parameter": {"Value": "ami-0123456789abcdef0"}}
        case "service-quotas", "get-service-quota":
            return {
                "Quota": {"Value": entry(state["quotas"], options["quota-code"], "NoSuchResourceException")}
            }
        case "s3", "ls":
            return f"Total Objects: {len(state['objects'])}\n   Total Size: 7"
    raise NotImplementedError(service, verb)


def s3(state: dict[str, Any], verb: str, options: dict[str, Any]) -> Any:
    """Buckets."""
    name = options["bucket"]
    if name in state["foreign"]:
        raise RefusedError("403")
    if verb == "create-bucket":
        return add(state["buckets"], name, {}, "BucketAlreadyOwnedByYou")
    bucket = entry(state["buckets"], name, "404")
    match verb:
        case "get-bucket-tagging":
            return {"TagSet": entry(bucket, "tagging", "NoSuchTagSet")}
        case "put-bucket-tagging":
            bucket["tagging"] = tags(options["tagging"])
        case "list-objects-v2":
            return {"Contents": [{"Key": key} for key in state["objects"]] or None}
        case "delete-bucket":
            del state["buckets"][name]
        case "put-bucket-lifecycle-configuration":
            bucket["lifecycle"] = json.loads(options["lifecycle-configuration"])
        case "put-bucket-policy":
            bucket["policy"] = json.loads(options["policy"])
    return {}


def iam(state: dict[str, Any], verb: str, options: dict[str, Any]) -> Any:
    """Roles and instance profiles."""
    roles, profiles = state["roles"], state["profiles"]
    name, profile = options.get("role-name", ""), options.get("instance-profile-name", "")
    match verb:
        case "create-role":
            add(roles, name, {"Tags": tags(options["tags"]), "policies": {}})
        case "get-role":
            return {"Role": entry(roles, name)}
        case "put-role-policy":
            entry(roles, name)["policies"][options["policy-name"]] = json.loads(options["policy-document"])
        case "list-role-policies":
            return {"PolicyNames": list(entry(roles, name)["policies"])}
        case "delete-role-policy":
            entry(entry(roles, name)["policies"], options["policy-name"])
            del roles[name]["policies"][options["policy-name"]]
        case "delete-role":
            if entry(roles, name)["policies"] or {"RoleName": name} in [
                role for held in profiles.values() for role in held["Roles"]
            ]:
                raise RefusedError("DeleteConflict")
            del roles[name]
        case "create-instance-profile":
            add(profiles, profile, {"Tags": tags(options["tags"]), "Roles": []})
        case "get-instance-profile":
            return {"InstanceProfile": entry(profiles, profile)}
        case "add-role-to-instance-profile":
            if entry(profiles, profile)["Roles"]:
                raise RefusedError("LimitExceeded")
            profiles[profile]["Roles"].append({"RoleName": name})
        case "remove-role-from-instance-profile":
            entry(profiles, profile)["Roles"].remove({"RoleName": name})
        case "delete-instance-profile":
            if entry(profiles, profile)["Roles"]:
                raise RefusedError("DeleteConflict")
            del profiles[profile]
        case "create-service-linked-role":
            if state["spot_role"]:
                raise RefusedError("InvalidInput")
            state["spot_role"] = True
        case _:
            raise NotImplementedError(verb)
    return {}


def ec2(state: dict[str, Any], verb: str, options: dict[str, Any]) -> Any:
    """Networks, security groups and what is offered."""
    groups = state["groups"]
    match verb:
        case "describe-vpcs":
            return {"Vpcs": [{"VpcId": state["vpc"]}] if state["vpc"] else []}
        case "describe-security-groups":
            by_tag = any(word.startswith("Name=tag:") for word in options["filters"])
            listed = [group for group in groups.values() if group["Tags"] or not by_tag]
            return {"SecurityGroups": listed}
        case "create-security-group":
            group = {
                "GroupId": "sg-0123456789abcdef0",
                "Tags": tags(options["tag-specifications"]),
                "IpPermissions": [],
            }
            add(groups, group["GroupId"], group, "InvalidGroup.Duplicate")
            return group
        case "authorize-security-group-ingress":
            rule = options["ip-permissions"]
            permission: dict[str, Any] = {"rule": rule}
            if "FromPort=22," in rule:
                kind, _, source = (
                    rule.split(",")[-1].removesuffix("}]").replace("=[{", " ").replace("=", " ").split(" ")
                )
                permission |= {"FromPort": 22, kind: [{_: source}]}
            permissions = entry(groups, options["group-id"], "InvalidGroup.NotFound")["IpPermissions"]
            if permission in permissions:
                raise RefusedError("InvalidPermission.Duplicate")
            permissions.append(permission)
        case "delete-security-group":
            entry(groups, options["group-id"], "InvalidGroup.NotFound")
            del groups[options["group-id"]]
        case "describe-instances":
            return {"Reservations": [{"Instances": [{"InstanceId": name} for name in state["instances"]]}]}
        case "describe-instance-types":
            return {
                "InstanceTypes": [
                    {"InstanceType": t, "VCpuInfo": {"DefaultVCpus": n}} for t, n, _ in state["offers"]
                ]
            }
        case "describe-instance-type-offerings":
            pairs = [(kind, zone) for kind, _, zones in state["offers"] for zone in zones]
            return {
                "InstanceTypeOfferings": [{"InstanceType": kind, "Location": zone} for kind, zone in pairs]
            }
        case _:
            raise NotImplementedError(verb)
    return {}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
