// A server of OpenID Connect and an API behind it, for oauth.py: node oauth.mjs PORT. Its user allows everything at once.
import { createRequire } from 'node:module';
import { generateKeyPairSync } from 'node:crypto';
import { pathToFileURL } from 'node:url';

const require = createRequire(pathToFileURL(`${process.cwd()}/`));
const { default: Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));

const port = Number(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;
const jwk = (kind, options, more) => ({ ...generateKeyPairSync(kind, options).privateKey.export({ format: 'jwk' }), ...more });
const grants = ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'];
const native = (client_id, alg) => ({
  client_id,
  application_type: 'native',
  token_endpoint_auth_method: 'none',
  grant_types: grants,
  response_types: ['code'],
  // A loopback redirect of a native client may have any port.
  redirect_uris: ['http://127.0.0.1/callback'],
  id_token_signed_response_alg: alg,
});

const provider = new Provider(issuer, {
  clients: [
    native('rs256', 'RS256'),
    native('es256', 'ES256'),
    {
      client_id: 'machine',
      client_secret: 'secret&of=the live tests',
      grant_types: ['client_credentials'],
      response_types: [],
      redirect_uris: [],
    },
  ],
  jwks: {
    keys: [
      jwk('rsa', { modulusLength: 2048 }, { kid: 'r', use: 'sig', alg: 'RS256' }),
      jwk('ec', { namedCurve: 'P-256' }, { kid: 'e', use: 'sig', alg: 'ES256' }),
    ],
  },
  cookies: { keys: ['of-the-live-tests'] },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    deviceFlow: { enabled: true },
    revocation: { enabled: true },
  },
  scopes: ['openid', 'read'],
  issueRefreshToken: async () => true,
  rotateRefreshToken: () => true,
  findAccount: async (_, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  ttl: { AccessToken: 4, ClientCredentials: 60, IdToken: 60, RefreshToken: 600, Grant: 600, Session: 600, Interaction: 600, DeviceCode: 60 },
});

provider.use(async (ctx, next) => {
  if (ctx.path.startsWith('/interaction/')) {
    const { prompt, params, session } = await provider.interactionDetails(ctx.req, ctx.res);
    const accountId = session?.accountId ?? 'ada';
    const grant = new provider.Grant({ accountId, clientId: params.client_id });
    grant.addOIDCScope(params.scope ?? 'openid');
    const consent = { grantId: await grant.save() };
    const result = prompt.name === 'login' ? { login: { accountId }, consent } : { consent };
    await provider.interactionFinished(ctx.req, ctx.res, result, { mergeWithLastSubmission: true });
    ctx.respond = false;
    return;
  }
  if (ctx.path.startsWith('/api/')) {
    const token = (ctx.get('authorization').match(/^Bearer (.+)$/) ?? [])[1];
    const found = token && ((await provider.AccessToken.find(token)) ?? (await provider.ClientCredentials.find(token)));
    ctx.status = found ? 200 : 401;
    ctx.body = found ? { client: found.clientId, user: found.accountId ?? null } : { error: 'unauthorized' };
    return;
  }
  await next();
});
provider.listen(port, '127.0.0.1');
